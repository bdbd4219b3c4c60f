//! Finds the request that feedback is about.

use crate::database::{Reading, Value};
use crate::error::{MemoryError, Result};
use crate::witness::WitnessEntry;

use super::Trajectory;

/// A request that the memory knows, as much of it as feedback needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownRequest {
    /// The id that the log knows it by.
    pub request: String,
    pub response: Option<String>,
    pub tenant: String,
    pub user: Option<String>,
    pub model: String,
    /// Whether its texts are kept, and with them those of feedback.
    pub keeps_text: bool,
}

/// Returns the newest request with an id that its client was told: of the request or of its response, with the suffix of a
/// choice (`#2`) where there are several. `tenant` is `None` for all tenants.
pub(super) fn find(database: &mut dyn Reading, tenant: Option<&str>, id: &str) -> Result<Option<KnownRequest>> {
    if let Some(found) = chosen(all(database, tenant, id)?, id, None) {
        return Ok(Some(found));
    }
    // The second choice of a response: responses have one id for all of them.
    let Some((base, choice)) = id.rsplit_once('#') else { return Ok(None) };
    Ok(chosen(all(database, tenant, base)?, base, Some(choice)))
}

/// Returns the newest request of this id, or else that choice of a response of this id: the first one if none is named.
fn chosen(found: Vec<KnownRequest>, id: &str, choice: Option<&str>) -> Option<KnownRequest> {
    let is_choice = |known: &&KnownRequest| match choice {
        Some(choice) => known.request.rsplit_once('#').is_some_and(|(_, suffix)| suffix == choice),
        None => !known.request.contains('#'),
    };
    let exact = || found.iter().find(|known| known.request == id);
    let named = choice.map_or_else(exact, |_| None);
    named.or_else(|| found.iter().find(is_choice)).or_else(|| found.last().filter(|_| choice.is_none())).cloned()
}

/// Returns all that have an id, the newest first: in the log, and among trajectories that have outlived their entry.
fn all(database: &mut dyn Reading, tenant: Option<&str>, id: &str) -> Result<Vec<KnownRequest>> {
    let mut found = Vec::new();
    let is_own = |known: &KnownRequest| tenant.is_none_or(|tenant| tenant == known.tenant);
    let sql = "SELECT b.body, (SELECT count(*) FROM trajectories t WHERE t.id = w.id) FROM witness w \
               JOIN witness_bodies b ON b.id = w.id WHERE (w.request = $1 OR w.response = $1) AND w.kind IS NULL \
               ORDER BY w.id DESC LIMIT 256";
    database.rows(sql, &[id.into()], &mut |row| {
        let entry: WitnessEntry = parse(&row[0])?;
        let keeps_text = entry.texts.is_some() || row[1].integer()? > 0;
        let WitnessEntry { request, response, tenant, user, model, .. } = entry;
        found.push(KnownRequest { request, response, tenant, user, model, keeps_text });
        Ok(())
    })?;
    if found.iter().any(is_own) {
        found.retain(is_own);
        return Ok(found);
    }
    found.clear();
    let sql = "SELECT body FROM trajectories WHERE request = $1 OR response = $1 ORDER BY id DESC LIMIT 256";
    database.rows(sql, &[id.into()], &mut |row| {
        let Trajectory { request, response, tenant, user, model, .. } = parse(&row[0])?;
        found.push(KnownRequest { request, response, tenant, user, model, keeps_text: true });
        Ok(())
    })?;
    found.retain(is_own);
    Ok(found)
}

fn parse<T: serde::de::DeserializeOwned>(body: &Value) -> Result<T> {
    serde_json::from_str(body.as_text()?)
        .map_err(|error| MemoryError::damaged(format!("a request cannot be read: {error}")))
}
