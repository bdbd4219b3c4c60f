//! Which sessions are removed when they are too old or take too much space.

use super::forget;
use crate::database::{Reading, Writing, first_row};
use crate::error::Result;

/// A candidate for removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Oldest {
    pub id: i64,
    pub active_ms: i64,
    pub bytes: u64,
}

/// Returns the least recently used sessions, the oldest first.
pub(crate) fn oldest(database: &mut dyn Reading, tenant: Option<u32>, count_max: usize) -> Result<Vec<Oldest>> {
    let (condition, params) = match tenant {
        Some(tenant) => ("WHERE tenant = $1", vec![i64::from(tenant).into()]),
        None => ("", Vec::new()),
    };
    let sql =
        format!("SELECT id, active_ms, bytes FROM session_heads {condition} ORDER BY active_ms, id LIMIT {count_max}");
    let mut oldest = Vec::new();
    database.rows(&sql, &params, &mut |row| {
        let bytes = u64::try_from(row[2].integer()?).unwrap_or_default();
        oldest.push(Oldest { id: row[0].integer()?, active_ms: row[1].integer()?, bytes });
        Ok(())
    })?;
    Ok(oldest)
}

/// Removes sessions that were last used before a time, a maximum of `count_max`, so that others can write in between. Returns
/// how many.
pub(crate) fn expire(database: &mut dyn Writing, before_ms: i64, count_max: usize) -> Result<usize> {
    let mut old = oldest(database.as_reading(), None, count_max)?;
    old.retain(|session| session.active_ms < before_ms);
    for session in &old {
        forget(database, session.id)?;
    }
    Ok(old.len())
}

/// Candidates that are read at a time.
const LOOKED_AT: usize = 100;

/// Removes the oldest sessions of a tenant until the others fit its quota. The newest stays in any case. Returns how many were
/// removed.
pub(crate) fn keep_quota(database: &mut dyn Writing, tenant: u32, bytes_max: u64) -> Result<usize> {
    let sql = "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT), count(*) FROM session_heads WHERE tenant = $1";
    let Some(row) = first_row(database, sql, &[i64::from(tenant).into()])? else { return Ok(0) };
    let mut bytes = u64::try_from(row[0].integer()?).unwrap_or_default();
    let (mut left, mut removed) = (row[1].integer()?, 0);
    while bytes > bytes_max && left > 1 {
        for session in oldest(database.as_reading(), Some(tenant), LOOKED_AT)? {
            if bytes <= bytes_max || left <= 1 {
                break;
            }
            forget(database, session.id)?;
            bytes = bytes.saturating_sub(session.bytes);
            (left, removed) = (left - 1, removed + 1);
        }
    }
    Ok(removed)
}
