//! Searches requests by time, figures, tenant, user, model, session, error and meaning.

use super::annotation::{Annotation, FEEDBACK};
use super::entry::WitnessEntry;
use crate::database::{Database, Reading, Value, first_row, reading};
use crate::error::{MemoryError, Result};
use crate::facets::{Kind, Limits, entry_of};
use crate::names::Names;
use crate::words::Range;

/// Maximum number of similar vectors that are fetched, however many of them other conditions exclude.
const CANDIDATES_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorFilter {
    /// Only entries without an error.
    None,
    Any,
    Kind(String),
}

/// Selects entries. All given conditions must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct WitnessQuery {
    /// `None` for all tenants.
    pub tenant: Option<String>,
    /// The end user.
    pub user: Option<String>,
    pub model: Option<String>,
    pub session: Option<String>,
    /// Half-open range of time.
    pub since_ms: Option<i64>,
    pub until_ms: Option<i64>,
    pub quality: Option<Range>,
    pub latency_ms: Option<Range>,
    pub error: Option<ErrorFilter>,
    /// Embedding to compare with. The most similar entries come first then, otherwise the newest.
    pub like: Option<Vec<f32>>,
    /// Whether answers are compared, too, and not only prompts.
    pub is_answer_searched: bool,
    /// Only entries before this id, for the next page of a list.
    pub before: Option<i64>,
    pub count_max: usize,
}

impl Default for WitnessQuery {
    fn default() -> Self {
        Self {
            tenant: None,
            user: None,
            model: None,
            session: None,
            since_ms: None,
            until_ms: None,
            quality: None,
            latency_ms: None,
            error: None,
            like: None,
            is_answer_searched: true,
            before: None,
            count_max: 20,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub id: i64,
    /// `None` unless the search was by meaning.
    pub similarity: Option<f32>,
    pub entry: WitnessEntry,
}

pub(crate) fn search(database: &dyn Database, names: &Names, query: &WitnessQuery) -> Result<Vec<Found>> {
    match &query.like {
        Some(vector) => by_meaning(database, names, query, vector),
        None => reading(database, |reading| by_columns(reading, names, query, None)),
    }
}

pub(crate) fn by_id(database: &mut dyn Reading, id: i64) -> Result<Option<WitnessEntry>> {
    let sql = "SELECT b.body FROM witness w JOIN witness_bodies b ON b.id = w.id WHERE w.id = $1 AND w.kind IS NULL";
    let row = first_row(database, sql, &[id.into()])?;
    row.map(|row| parse(row[0].as_text()?)).transpose()
}

/// Returns the requests with an id that clients were told, of the request or of its response, the newest first. A client may
/// have chosen the same id twice.
pub(crate) fn by_request(database: &mut dyn Reading, request: &str) -> Result<Vec<(i64, WitnessEntry)>> {
    let sql = "SELECT w.id, b.body FROM witness w JOIN witness_bodies b ON b.id = w.id \
               WHERE (w.request = $1 OR w.response = $1) AND w.kind IS NULL ORDER BY w.id DESC LIMIT 100";
    let mut found = Vec::new();
    database.rows(sql, &[request.into()], &mut |row| {
        found.push((row[0].integer()?, parse(row[1].as_text()?)?));
        Ok(())
    })?;
    Ok(found)
}

/// Returns what was said about a request of a tenant, the oldest first.
pub(crate) fn annotations(database: &mut dyn Reading, names: &Names, entry: &WitnessEntry) -> Result<Vec<Annotation>> {
    let Some(tenant) = names.find(database, &entry.tenant)? else { return Ok(Vec::new()) };
    let sql = "SELECT b.body FROM witness w JOIN witness_bodies b ON b.id = w.id \
               WHERE w.about = $1 AND w.kind = $2 AND w.tenant = $3 ORDER BY w.id LIMIT 1000";
    let params = [entry.request.as_str().into(), FEEDBACK.into(), i64::from(tenant).into()];
    let mut found = Vec::new();
    database.rows(sql, &params, &mut |row| {
        let annotation = serde_json::from_str(row[0].as_text()?);
        found.push(annotation.map_err(|error| MemoryError::damaged(format!("an entry cannot be read: {error}")))?);
        Ok(())
    })?;
    Ok(found)
}

/// Fetches similar entries and filters them by columns that vectors do not have, and fetches more until there are enough.
fn by_meaning(database: &dyn Database, names: &Names, query: &WitnessQuery, vector: &[f32]) -> Result<Vec<Found>> {
    let Some(limits) = reading(database, |reading| limits(reading, names, query))? else { return Ok(Vec::new()) };
    let filter = limits.filter();
    let mut count = (query.count_max * 3).clamp(16, CANDIDATES_MAX);
    loop {
        let near = database.nearest(vector, count, &filter)?;
        let is_all = near.len() < count || count == CANDIDATES_MAX;
        let mut similar: Vec<(i64, f32)> = Vec::with_capacity(near.len());
        for hit in near {
            let (entry, _) = entry_of(hit.id);
            // Prompt and answer of an entry may both be similar.
            if !similar.iter().any(|(known, _)| *known == entry) {
                similar.push((entry, hit.similarity));
            }
        }
        let found = reading(database, |reading| by_columns(reading, names, query, Some(&similar)))?;
        if is_all || found.len() >= query.count_max {
            return Ok(in_order(found, &similar, query.count_max));
        }
        count = (count * 4).min(CANDIDATES_MAX);
    }
}

fn in_order(mut found: Vec<Found>, similar: &[(i64, f32)], count_max: usize) -> Vec<Found> {
    for one in &mut found {
        one.similarity = similar.iter().find(|(id, _)| *id == one.id).map(|(_, similarity)| *similarity);
    }
    found.sort_by(|a, b| b.similarity.partial_cmp(&a.similarity).unwrap_or(std::cmp::Ordering::Equal));
    found.truncate(count_max);
    found
}

/// Returns `None` if a name in the query is unknown, so that nothing can be found.
fn limits(database: &mut dyn Reading, names: &Names, query: &WitnessQuery) -> Result<Option<Limits>> {
    let mut number = |name: &Option<String>| match name {
        Some(name) => names.find(database, name).map(|number| number.map(Some)),
        None => Ok(Some(None)),
    };
    let (Some(tenant), Some(model)) = (number(&query.tenant)?, number(&query.model)?) else { return Ok(None) };
    let kinds = if query.is_answer_searched { vec![Kind::Request, Kind::Answer] } else { vec![Kind::Request] };
    Ok(Some(Limits {
        kinds,
        tenant,
        model,
        since_ms: query.since_ms,
        until_ms: query.until_ms,
        quality: query.quality.map(|range| (range.min, range.max)),
        total_ms: query.latency_ms.map(|range| (range.min, range.max)),
        is_failed: query.error.as_ref().map(|error| *error != ErrorFilter::None),
    }))
}

/// Which entries are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinds {
    Requests,
    All,
}

/// Returns SQL conditions over `witness w` with their values; `None` if nothing can fulfil them.
pub(super) fn conditions(
    database: &mut dyn Reading,
    names: &Names,
    query: &WitnessQuery,
    kinds: Kinds,
) -> Result<Option<(String, Vec<Value>)>> {
    let mut params: Vec<Value> = Vec::new();
    // Annotations have no figures that could be compared.
    let has_figures = query.latency_ms.is_some() || query.error.is_some();
    let all = kinds == Kinds::All && !has_figures;
    let mut sql = String::from(if all { "1 = 1" } else { "w.kind IS NULL" });
    let mut condition = |text: &str, value: Value| {
        params.push(value);
        sql.push_str(&format!(" AND {text} ${}", params.len()));
    };
    for (column, name) in [("w.tenant =", &query.tenant), ("w.model =", &query.model)] {
        if let Some(name) = name {
            let Some(number) = names.find(database, name)? else { return Ok(None) };
            condition(column, i64::from(number).into());
        }
    }
    if let Some(user) = &query.user {
        condition("w.end_user =", user.as_str().into());
    }
    if let Some(since_ms) = query.since_ms {
        condition("w.at_ms >=", since_ms.into());
    }
    if let Some(until_ms) = query.until_ms {
        condition("w.at_ms <", until_ms.into());
    }
    for (column, range) in [("w.quality", query.quality), ("w.total_ms", query.latency_ms)] {
        if let Some(Range { min, max }) = range {
            condition(&format!("{column} >="), min.max(f64::MIN).into());
            condition(&format!("{column} <="), max.min(f64::MAX).into());
        }
    }
    if let Some(before) = query.before {
        condition("w.id <", before.into());
    }
    if let Some(ErrorFilter::Kind(kind)) = &query.error {
        condition("w.error =", kind.as_str().into());
    }
    match query.error {
        Some(ErrorFilter::None) => sql.push_str(" AND w.error IS NULL"),
        Some(ErrorFilter::Any) => sql.push_str(" AND w.error IS NOT NULL"),
        Some(ErrorFilter::Kind(_)) | None => {}
    }
    if let Some(session) = &query.session {
        params.push(session.as_str().into());
        sql.push_str(&format!(" AND w.session IN (SELECT id FROM sessions WHERE name = ${})", params.len()));
    }
    Ok(Some((sql, params)))
}

fn by_columns(
    database: &mut dyn Reading,
    names: &Names,
    query: &WitnessQuery,
    among: Option<&[(i64, f32)]>,
) -> Result<Vec<Found>> {
    let Some((mut conditions, params)) = conditions(database, names, query, Kinds::Requests)? else {
        return Ok(Vec::new());
    };
    let count = match among {
        Some([]) => return Ok(Vec::new()),
        Some(among) => {
            // Only numbers, so they need not be parameters.
            let ids: Vec<String> = among.iter().map(|(id, _)| id.to_string()).collect();
            conditions.push_str(&format!(" AND w.id IN ({})", ids.join(", ")));
            among.len()
        }
        None => query.count_max,
    };
    let sql = format!(
        "SELECT w.id, b.body FROM witness w JOIN witness_bodies b ON b.id = w.id WHERE {conditions} \
         ORDER BY w.id DESC LIMIT {count}"
    );
    let mut found = Vec::new();
    database.rows(&sql, &params, &mut |row| {
        found.push(Found { id: row[0].integer()?, similarity: None, entry: parse(row[1].as_text()?)? });
        Ok(())
    })?;
    Ok(found)
}

pub(super) fn parse(body: &str) -> Result<WitnessEntry> {
    serde_json::from_str(body).map_err(|error| MemoryError::damaged(format!("an entry cannot be read: {error}")))
}
