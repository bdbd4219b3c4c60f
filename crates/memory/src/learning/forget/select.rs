//! Which rows are forgotten.

use std::collections::BTreeSet;

use super::Forget;
use crate::database::{Reading, Value};
use crate::error::Result;
use crate::learning::known;
use crate::names::Names;

/// Returns the ids of all choices of an answer, of which one id is given.
pub(super) fn ids_of(database: &mut dyn Reading, tenant: Option<&str>, id: &str) -> Result<Vec<String>> {
    let Some(known) = known::find(database, tenant, id)? else { return Ok(Vec::new()) };
    let mut ids = BTreeSet::from([known.request]);
    if let Some(response) = known.response {
        for table in ["witness", "trajectories"] {
            let sql = format!("SELECT request FROM {table} WHERE response = $1");
            database.rows(&sql, &[response.as_str().into()], &mut |row| {
                ids.insert(row[0].as_text_owned()?);
                Ok(())
            })?;
        }
    }
    Ok(ids.into_iter().collect())
}

/// SQL conditions that select what is forgotten, with their values: the same for entries and for trajectories.
pub(super) struct Conditions {
    pub sql: String,
    pub params: Vec<Value>,
    /// The same for sessions; `None` where they are found by their entries only.
    pub sessions: Option<(String, Vec<Value>)>,
}

impl Conditions {
    /// Returns `None` if there is nothing that could fulfil them.
    pub fn of(database: &mut dyn Reading, names: &Names, what: &Forget, ids: &[String]) -> Result<Option<Self>> {
        let mut params: Vec<Value> = Vec::new();
        let mut sql = String::from("1 = 1");
        if let Some(tenant) = what.tenant() {
            let Some(number) = names.find(database, tenant)? else { return Ok(None) };
            params.push(i64::from(number).into());
            sql.push_str(" AND tenant = $1");
        }
        if let Forget::User { name, .. } = what {
            params.push(name.as_str().into());
            sql.push_str(&format!(" AND end_user = ${}", params.len()));
        }
        let sessions = (!matches!(what, Forget::Request { .. })).then(|| (sql.clone(), params.clone()));
        if matches!(what, Forget::Request { .. }) {
            if ids.is_empty() {
                return Ok(None);
            }
            let first = params.len() + 1;
            let places: Vec<String> = (first..first + ids.len()).map(|at| format!("${at}")).collect();
            params.extend(ids.iter().map(|id| Value::from(id.as_str())));
            sql.push_str(&format!(" AND request IN ({})", places.join(", ")));
        }
        Ok(Some(Self { sql, params, sessions }))
    }
}
