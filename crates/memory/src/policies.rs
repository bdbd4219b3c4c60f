//! Policies: parameters that were learned or set by hand, cached so that requests need not read the store.

mod cache;
mod defaults;
mod store;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub use cache::Policies;
pub(crate) use cache::PolicyCache;
pub use defaults::defaults;
pub use store::PolicyStore;

use crate::database::{Reading, StoredVector, Value, Writing, first_row};
use crate::error::{MemoryError, Result};
use crate::facets::{Kind, Metadata, Part, vector_id};
use crate::graph;
use crate::names::Names;
use crate::schema::take_numbers;
use crate::vector::VectorCode;

const NAME_CHARS_MAX: usize = 100;
const PARAMETERS_BYTES_MAX: usize = 1 << 20;

/// The origin of a policy: learning at one of its time scales, other nodes, or a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicySource {
    Instant,
    Background,
    Deep,
    Federated,
    #[default]
    Manual,
    /// Built in, for a start without experience.
    Default,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Its type. Requests are answered by those of type `router`.
    pub kind: String,
    pub name: String,
    /// The tenant it holds for; empty for all tenants.
    #[serde(default)]
    pub tenant: String,
    pub parameters: Json,
    /// Confidence of its origin, from 0 to 1.
    pub confidence: f64,
    #[serde(default)]
    pub source: PolicySource,
    #[serde(default)]
    pub created_ms: i64,
    #[serde(default)]
    pub accessed_ms: i64,
}

impl Policy {
    pub fn new(kind: &str, name: &str, parameters: Json) -> Self {
        Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
            tenant: String::new(),
            parameters,
            confidence: 1.0,
            source: PolicySource::Manual,
            created_ms: 0,
            accessed_ms: 0,
        }
    }

    fn check(&self) -> Result<()> {
        let is_word = |text: &str| {
            let is_fine = |c: char| c.is_alphanumeric() || "-_.:/".contains(c);
            !text.is_empty() && text.chars().count() <= NAME_CHARS_MAX && text.chars().all(is_fine)
        };
        for (field, text) in [("type", &self.kind), ("name", &self.name)] {
            if !is_word(text) {
                let problem = format!("{text:?} is not made of 1 to {NAME_CHARS_MAX} letters, digits and -_.:/");
                return Err(MemoryError::invalid(field, problem));
            }
        }
        if !self.parameters.is_object() {
            return Err(MemoryError::invalid("parameters", "must be a JSON object, such as {\"temperature\": 0.2}"));
        }
        if !(0.0..=1.0).contains(&self.confidence) {
            return Err(MemoryError::invalid("confidence", format!("{} is not between 0 and 1", self.confidence)));
        }
        if self.parameters.to_string().len() > PARAMETERS_BYTES_MAX {
            return Err(MemoryError::invalid("parameters", "are larger than a megabyte"));
        }
        Ok(())
    }
}

/// Selects policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyQuery {
    /// A tenant's own and those for all tenants; `None` for the policies of every tenant.
    pub tenant: Option<String>,
    pub kind: Option<String>,
}

/// Stores a policy, and replaces one of the same tenant, type and name. Returns its id.
pub(crate) fn put(
    database: &mut dyn Writing,
    names: &Names,
    policy: &Policy,
    code: Option<&VectorCode>,
    at_ms: i64,
) -> Result<i64> {
    policy.check()?;
    let tenant = names.find_or_add(database, &policy.tenant)?;
    let sql = "SELECT id, created_ms FROM policies WHERE tenant = $1 AND kind = $2 AND name = $3";
    let key = [i64::from(tenant).into(), policy.kind.as_str().into(), policy.name.as_str().into()];
    let (id, created_ms) = match first_row(database, sql, &key)? {
        Some(row) => (row[0].integer()?, row[1].integer()?),
        None => (take_numbers(database, "entry", 1)?, at_ms),
    };
    let body = serde_json::to_string(&Policy { created_ms, accessed_ms: at_ms, ..policy.clone() });
    let body = body.map_err(|error| MemoryError::invalid("policy", error.to_string()))?;
    let sql = "INSERT INTO policies (id, tenant, kind, name, body, created_ms, accessed_ms) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET \
               body = excluded.body, accessed_ms = excluded.accessed_ms";
    let [tenant_value, kind, name] = key;
    let values = [id.into(), tenant_value, kind, name, body.into(), created_ms.into(), at_ms.into()];
    database.execute(sql, &values)?;
    if let Some(code) = code {
        let facets = Metadata::plain(Kind::Policy, tenant, at_ms).facets();
        database.put_vector(StoredVector { id: vector_id(id, Part::Whole), code: code.clone(), facets })?;
    }
    take_numbers(database, "policies", 1)?;
    Ok(id)
}

/// Returns a number that changes whenever a policy does, on any machine.
pub(crate) fn version(database: &mut dyn Reading) -> Result<i64> {
    let row = first_row(database, "SELECT value FROM counters WHERE name = 'policies'", &[])?;
    row.map_or(Ok(0), |row| row[0].integer())
}

/// Returns stored policies by type and name. Built-in ones are not among them.
pub(crate) fn list(database: &mut dyn Reading, names: &Names, query: &PolicyQuery) -> Result<Vec<(i64, Policy)>> {
    let mut params: Vec<Value> = Vec::new();
    let mut conditions = String::from("1 = 1");
    if let Some(tenant) = &query.tenant {
        // A tenant that has stored nothing still sees those for all tenants.
        let tenant = names.find(database, tenant)?.unwrap_or(crate::names::NOBODY);
        params.push(i64::from(tenant).into());
        conditions.push_str(" AND (tenant = $1 OR tenant = 0)");
    }
    if let Some(kind) = &query.kind {
        params.push(kind.as_str().into());
        conditions.push_str(&format!(" AND kind = ${}", params.len()));
    }
    let sql = format!("SELECT id, body, accessed_ms FROM policies WHERE {conditions} ORDER BY kind, name, tenant");
    let mut found = Vec::new();
    database.rows(&sql, &params, &mut |row| {
        found.push((row[0].integer()?, parse(row)?));
        Ok(())
    })?;
    Ok(found)
}

pub(crate) fn by_id(database: &mut dyn Reading, id: i64) -> Result<Option<Policy>> {
    let row = first_row(database, "SELECT id, body, accessed_ms FROM policies WHERE id = $1", &[id.into()])?;
    row.map(|row| parse(&row)).transpose()
}

/// Returns whether there was such a policy.
pub(crate) fn remove(database: &mut dyn Writing, names: &Names, tenant: &str, kind: &str, name: &str) -> Result<bool> {
    let Some(tenant) = names.find(database.as_reading(), tenant)? else { return Ok(false) };
    let sql = "SELECT id FROM policies WHERE tenant = $1 AND kind = $2 AND name = $3";
    let Some(row) = first_row(database, sql, &[i64::from(tenant).into(), kind.into(), name.into()])? else {
        return Ok(false);
    };
    let id = row[0].integer()?;
    database.execute("DELETE FROM policies WHERE id = $1", &[id.into()])?;
    database.remove_vectors(&[vector_id(id, Part::Whole)])?;
    graph::disconnect(database, id)?;
    take_numbers(database, "policies", 1)?;
    Ok(true)
}

/// Sets the time at which a policy, `type/name`, was last used for a tenant.
pub(crate) fn touch(database: &mut dyn Writing, tenant: u32, policy: &str, at_ms: i64) -> Result<()> {
    let Some((kind, name)) = policy.split_once('/') else { return Ok(()) };
    let sql = "UPDATE policies SET accessed_ms = $1 WHERE kind = $2 AND name = $3 AND (tenant = $4 OR tenant = 0)";
    database.execute(sql, &[at_ms.into(), kind.into(), name.into(), i64::from(tenant).into()]).map(drop)
}

fn parse(row: &[Value]) -> Result<Policy> {
    let policy: Policy = serde_json::from_str(row[1].as_text()?)
        .map_err(|error| MemoryError::damaged(format!("a policy cannot be read: {error}")))?;
    Ok(Policy { accessed_ms: row[2].integer()?, ..policy })
}
