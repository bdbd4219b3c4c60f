//! How long trajectories are kept, and how many.

use crate::database::{Reading, Value, Writing, first_row};
use crate::error::Result;

/// Removes trajectories from before a time, a maximum of `count_max`. Returns how many.
pub(crate) fn expire(database: &mut dyn Writing, before_ms: i64, count_max: usize) -> Result<usize> {
    let sql = format!("SELECT id FROM trajectories WHERE at_ms < $1 ORDER BY at_ms LIMIT {count_max}");
    let old = ids(database.as_reading(), &sql, &[before_ms.into()])?;
    remove(database, &old)?;
    Ok(old.len())
}

/// Removes trajectories until all fit the maximum size, or `count_max` are removed: the oldest of whichever tenant has most,
/// so that nobody's traffic takes what others have. Returns how many.
pub(crate) fn keep_size(database: &mut dyn Writing, bytes_max: u64, count_max: usize) -> Result<usize> {
    let mut tenants = sizes(database.as_reading())?;
    let mut bytes: u64 = tenants.iter().map(|(_, bytes)| bytes).sum();
    let mut removed = 0;
    while bytes > bytes_max && removed < count_max {
        let Some((tenant, largest)) = tenants.iter_mut().max_by_key(|(_, bytes)| *bytes) else { break };
        let sql = "SELECT id, bytes FROM trajectories WHERE tenant = $1 ORDER BY at_ms, id LIMIT 1";
        let Some(row) = first_row(database, sql, &[(*tenant).into()])? else { break };
        let freed = u64::try_from(row[1].integer()?).unwrap_or_default();
        remove(database, &[row[0].integer()?])?;
        (*largest, bytes, removed) = (largest.saturating_sub(freed), bytes.saturating_sub(freed), removed + 1);
    }
    Ok(removed)
}

/// Returns the number of each tenant with trajectories, and their size.
fn sizes(database: &mut dyn Reading) -> Result<Vec<(i64, u64)>> {
    let mut sizes = Vec::new();
    let sql = "SELECT tenant, CAST(sum(bytes) AS BIGINT) FROM trajectories GROUP BY tenant";
    database.rows(sql, &[], &mut |row| {
        sizes.push((row[0].integer()?, u64::try_from(row[1].integer()?).unwrap_or_default()));
        Ok(())
    })?;
    Ok(sizes)
}

pub(super) fn ids(database: &mut dyn Reading, sql: &str, params: &[Value]) -> Result<Vec<i64>> {
    let mut ids = Vec::new();
    database.rows(sql, params, &mut |row| {
        ids.push(row[0].integer()?);
        Ok(())
    })?;
    Ok(ids)
}

pub(super) fn remove(database: &mut dyn Writing, ids: &[i64]) -> Result<()> {
    for id in ids {
        database.execute("DELETE FROM trajectories WHERE id = $1", &[(*id).into()])?;
    }
    Ok(())
}
