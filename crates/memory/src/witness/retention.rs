//! What is kept, and for how long. Whole batches go, the oldest first, so that the chain stays whole.

use std::time::Duration;

use super::chain::{self, ANCHOR, Hash};
use crate::database::{Reading, Writing, first_row};
use crate::error::Result;
use crate::facets::{Part, vector_id};
use crate::schema::set_meta;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub age_max: Duration,
    /// Of the whole memory on disk.
    pub bytes_max: u64,
    /// Sessions that nobody used for so long are forgotten.
    pub session_age_max: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self { age_max: 7 * day, bytes_max: 5_000_000_000, session_age_max: 30 * day }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub batches: usize,
    pub entries: u64,
    pub sessions: usize,
}

/// Removes batches that are older, at most `batches_max` of them so that others get their turn; `room` asks for some however
/// young they are. The newest batch stays: the chain goes on from it.
pub(crate) fn retain(database: &mut dyn Writing, before_ms: i64, room: usize, batches_max: usize) -> Result<Removed> {
    let sql = format!("SELECT id, first, last, at_ms, hash FROM batches ORDER BY id LIMIT {}", batches_max + 1);
    let mut oldest = Vec::new();
    database.rows(&sql, &[], &mut |row| {
        oldest.push((
            row[0].integer()?,
            row[1].integer()?,
            row[2].integer()?,
            row[3].integer()?,
            chain::hash(&row[4])?,
        ));
        Ok(())
    })?;
    let mut removed = Removed::default();
    let mut anchor: Option<(i64, Hash)> = None;
    let removable = oldest.len().saturating_sub(1).min(batches_max);
    for (number, first, last, at_ms, hash) in &oldest[..removable] {
        if *at_ms >= before_ms && removed.batches >= room {
            break;
        }
        remove_entries(database, *first, *last)?;
        database.execute("DELETE FROM batches WHERE id = $1", &[(*number).into()])?;
        removed.batches += 1;
        removed.entries += (last - first + 1).max(0) as u64;
        anchor = Some((*number, *hash));
    }
    if let Some((number, hash)) = anchor {
        set_meta(database, ANCHOR, &chain::anchor_text(number, &hash))?;
    }
    Ok(removed)
}

/// How many of the oldest batches must go for the memory to be of the size that is allowed; an estimate.
pub(crate) fn room_needed(database: &mut dyn Reading, bytes: u64, bytes_max: u64) -> Result<usize> {
    if bytes <= bytes_max {
        return Ok(0);
    }
    let row = first_row(database, "SELECT count(*) FROM batches", &[])?;
    let batches = row.map_or(Ok(0), |row| row[0].integer())?;
    let share = (bytes - bytes_max) as f64 / bytes as f64;
    // A little more, so that this is not needed every minute.
    Ok(((share + 0.02) * batches as f64).ceil() as usize)
}

fn remove_entries(database: &mut dyn Writing, first: i64, last: i64) -> Result<()> {
    let range = [first.into(), last.into()];
    for (table, column) in [("witness", "id"), ("witness_bodies", "id"), ("edges", "source"), ("edges", "target")] {
        database.execute(&format!("DELETE FROM {table} WHERE {column} >= $1 AND {column} <= $2"), &range)?;
    }
    let vectors: Vec<i64> =
        (first..=last).flat_map(|id| [vector_id(id, Part::Whole), vector_id(id, Part::Answer)]).collect();
    database.remove_vectors(&vectors)
}
