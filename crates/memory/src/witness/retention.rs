//! Retention. Whole batches are removed, the oldest first, so that the hash chain stays intact.

use std::time::Duration;

use super::chain::{self, ANCHOR, Hash};
use crate::database::{Reading, Writing, first_row};
use crate::error::Result;
use crate::facets::{Part, vector_id};
use crate::schema::set_meta;
use crate::sessions;

/// Estimated size of an entry besides its text: two vectors as floats and codes, their index entries, its row.
pub(crate) const ENTRY_BYTES: i64 = 12_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub age_max: Duration,
    /// Maximum size of the whole memory on disk.
    pub bytes_max: u64,
    /// Sessions that were not used for this long are removed.
    pub session_age_max: Duration,
    /// Maximum size of the sessions of one tenant; beyond it, the tenant's oldest are removed.
    pub session_bytes_max: u64,
    /// Trajectories are kept for this long,
    pub learn_age_max: Duration,
    /// and up to this size.
    pub learn_bytes_max: u64,
}

impl Default for Retention {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        let bytes_max = 5_000_000_000;
        let session_bytes_max = Self::session_share(bytes_max);
        Self {
            age_max: 7 * day,
            bytes_max,
            session_age_max: 30 * day,
            session_bytes_max,
            learn_age_max: 90 * day,
            learn_bytes_max: Self::learn_share(bytes_max),
        }
    }
}

impl Retention {
    /// Returns the default quota of a tenant's sessions in a memory of this size.
    pub fn session_share(bytes_max: u64) -> u64 {
        bytes_max / 4
    }

    /// Returns the default size of all trajectories in a memory of this size.
    pub fn learn_share(bytes_max: u64) -> u64 {
        bytes_max / 5
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub batches: usize,
    pub entries: u64,
    pub sessions: usize,
    pub trajectories: usize,
}

impl Removed {
    pub(crate) fn add(&mut self, other: Self) {
        self.batches += other.batches;
        self.entries += other.entries;
        self.sessions += other.sessions;
        self.trajectories += other.trajectories;
    }
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    number: i64,
    first: i64,
    last: i64,
    at_ms: i64,
    bytes: i64,
    hash: Hash,
}

impl Batch {
    /// Estimates its size.
    fn weight(&self) -> u64 {
        u64::try_from(self.bytes + (self.last - self.first + 1) * ENTRY_BYTES).unwrap_or_default()
    }

    fn entries(&self) -> u64 {
        u64::try_from(self.last - self.first + 1).unwrap_or_default()
    }
}

/// Returns the oldest batches, but never the newest of all: the chain continues from it.
fn oldest(database: &mut dyn Reading, count_max: usize) -> Result<Vec<Batch>> {
    let sql = format!("SELECT id, first, last, at_ms, bytes, hash FROM batches ORDER BY id LIMIT {}", count_max + 1);
    let mut oldest = Vec::new();
    database.rows(&sql, &[], &mut |row| {
        let number = |column: usize| row[column].integer();
        let hash = chain::hash(&row[5])?;
        let (first, last, at_ms, bytes) = (number(1)?, number(2)?, number(3)?, number(4)?);
        oldest.push(Batch { number: number(0)?, first, last, at_ms, bytes, hash });
        Ok(())
    })?;
    oldest.truncate(count_max.min(oldest.len().saturating_sub(1)));
    Ok(oldest)
}

/// Removes batches from before a time, a maximum of `batches_max`, so that others can write in between. A batch dated in the
/// future was written with a wrong clock: it counts as old as the one after it.
pub(crate) fn expire(database: &mut dyn Writing, before_ms: i64, now_ms: i64, batches_max: usize) -> Result<Removed> {
    let oldest = oldest(database.as_reading(), batches_max)?;
    let is_candidate = |batch: &&Batch| batch.at_ms < before_ms || batch.at_ms > now_ms;
    let candidates = oldest.iter().take_while(is_candidate).count();
    let old = oldest[..candidates].iter().rposition(|batch| batch.at_ms < before_ms);
    remove(database, &oldest[..old.map_or(0, |at| at + 1)])
}

/// Removes the oldest batches and sessions until about `room` bytes are free, or `count_max` of either kind are removed.
/// Returns the bytes freed.
pub(crate) fn make_room(database: &mut dyn Writing, room: u64, count_max: usize) -> Result<(Removed, u64)> {
    let batches = oldest(database.as_reading(), count_max)?;
    let sessions = sessions::oldest(database.as_reading(), None, count_max)?;
    // A batch is at least as old as those after it, whatever its date.
    let mut ages: Vec<i64> = batches.iter().map(|batch| batch.at_ms).collect();
    (1..ages.len()).rev().for_each(|at| ages[at - 1] = ages[at - 1].min(ages[at]));
    let (mut batch, mut session, mut freed) = (0, 0, 0);
    while freed < room {
        match (batches.get(batch), sessions.get(session)) {
            (Some(one), other) if other.is_none_or(|other| ages[batch] <= other.active_ms) => {
                (batch, freed) = (batch + 1, freed + one.weight());
            }
            (_, Some(other)) => (session, freed) = (session + 1, freed + other.bytes),
            (_, None) => break,
        }
        if batch == count_max || session == count_max {
            break;
        }
    }
    let mut removed = remove(database, &batches[..batch])?;
    for session in &sessions[..session] {
        sessions::forget(database, session.id)?;
    }
    removed.sessions = session;
    Ok((removed, freed))
}

fn remove(database: &mut dyn Writing, batches: &[Batch]) -> Result<Removed> {
    let mut removed = Removed::default();
    for batch in batches {
        remove_entries(database, batch.first, batch.last)?;
        database.execute("DELETE FROM batches WHERE id = $1", &[batch.number.into()])?;
        removed.batches += 1;
        removed.entries += batch.entries();
    }
    if let Some(last) = batches.last() {
        set_meta(database, ANCHOR, &chain::anchor_text(last.number, &last.hash))?;
    }
    Ok(removed)
}

/// Returns how many bytes [`make_room`] must remove for the memory to fit its maximum size.
pub(crate) fn room_needed(database: &mut dyn Reading, bytes: u64, bytes_max: u64) -> Result<u64> {
    if bytes <= bytes_max {
        return Ok(0);
    }
    let sql = format!(
        "SELECT CAST((SELECT coalesce(sum(bytes) + sum(last - first + 1) * {ENTRY_BYTES}, 0) FROM batches) \
         + (SELECT coalesce(sum(bytes), 0) FROM session_heads) \
         + (SELECT coalesce(sum(bytes), 0) FROM trajectories) AS BIGINT)"
    );
    let row = first_row(database, &sql, &[])?;
    let counted = row.map_or(Ok(0), |row| row[0].integer())?;
    // A little more, so that this is not needed every minute.
    let share = (bytes - bytes_max) as f64 / bytes as f64 + 0.02;
    Ok((share * counted as f64).ceil() as u64)
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
