//! What was said about requests since somebody looked: whoever keeps what follows from it must know.

use crate::database::{Reading, Value, first_row};
use crate::error::Result;
use crate::names::Names;
use crate::witness::{FEEDBACK, FORGETTING};

/// Annotations of the log since a mark. Also those of other processes that share the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearningChanges {
    /// Where to look from the next time.
    pub mark: i64,
    /// Tenant and user of requests that feedback was given on, as far as they are kept to learn from.
    pub rated: Vec<(String, Option<String>)>,
    /// Whether anything was forgotten.
    pub has_forgotten: bool,
}

/// Returns the mark of now.
pub(super) fn mark(database: &mut dyn Reading) -> Result<i64> {
    let row = first_row(database, "SELECT coalesce(max(id), 0) FROM witness", &[])?;
    row.map_or(Ok(0), |row| row[0].integer())
}

pub(super) fn changes(database: &mut dyn Reading, since: i64) -> Result<LearningChanges> {
    let mut changes = LearningChanges { mark: since, ..LearningChanges::default() };
    let sql = format!(
        "SELECT w.id, w.kind, t.tenant, t.end_user FROM witness w \
         LEFT JOIN trajectories t ON t.request = w.about AND t.tenant = w.tenant \
         WHERE w.id > $1 AND w.kind IN ('{FEEDBACK}', '{FORGETTING}') ORDER BY w.id"
    );
    let mut rated = Vec::new();
    database.rows(&sql, &[since.into()], &mut |row| {
        changes.mark = row[0].integer()?;
        if row[1].as_text()? == FORGETTING {
            changes.has_forgotten = true;
        } else if let Some(tenant) = row[2].optional(Value::integer)? {
            rated.push((tenant, row[3].optional(Value::as_text_owned)?));
        }
        Ok(())
    })?;
    if !rated.is_empty() {
        let names = Names::all(database)?;
        let name = |number: i64| u32::try_from(number).ok().and_then(|number| names.get(&number)).cloned();
        changes.rated = rated.into_iter().filter_map(|(tenant, user)| Some((name(tenant)?, user))).collect();
        changes.rated.sort_unstable();
        changes.rated.dedup();
    }
    Ok(changes)
}
