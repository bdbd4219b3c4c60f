//! Which sessions go, when there is no room or they are too old.

use super::forget;
use crate::database::{Reading, Writing, first_row};
use crate::error::Result;

/// A session, for those who look for room: its number, when it was used last, what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Oldest {
    pub id: i64,
    pub active_ms: i64,
    pub bytes: u64,
}

/// Those that were not used for longest, the oldest first.
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

/// Removes those that nobody used since. At most `count_max` at a time, so that others get their turn; how many.
pub(crate) fn expire(database: &mut dyn Writing, before_ms: i64, count_max: usize) -> Result<usize> {
    let mut old = oldest(database.as_reading(), None, count_max)?;
    old.retain(|session| session.active_ms < before_ms);
    for session in &old {
        forget(database, session.id)?;
    }
    Ok(old.len())
}

/// Sessions that are looked at together for what they take.
const LOOKED_AT: usize = 100;

/// Keeps a tenant within what its sessions may take: its own oldest make room. How many went. The newest stays in any case.
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
