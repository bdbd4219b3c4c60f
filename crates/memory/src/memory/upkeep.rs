//! What keeps a memory in order: forgetting, backup and restoring, keys, and what is in it.

use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{FILE, Memory, MemoryStatus, key_source, now_ms};
use crate::clock;
use crate::database::{Reading, first_row};
use crate::embedded::restore;
use crate::error::{MemoryError, Result};
use crate::key::{Key, KeySource};
use crate::schema::meta;
use crate::sessions;
use crate::witness::{self, Removed};

/// Batches and sessions that are removed in one transaction.
const REMOVED_AT_ONCE: usize = 50;

impl Memory {
    /// Forgets what is too old or too much, and tidies up. Called now and then.
    pub fn upkeep(&self) -> Result<Removed> {
        let mut tended = self.tended.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = std::mem::replace(&mut *tended, Instant::now()).elapsed();
        drop(tended);
        self.upkeep_at(now_ms(), elapsed)
    }

    /// The same, with what the machine's clock shows and how much time has really passed since the last upkeep: what is too
    /// old follows the clock only as far as that makes believable.
    pub fn upkeep_at(&self, wall_ms: i64, elapsed: Duration) -> Result<Removed> {
        let clock_ms = self.write(|writing| clock::advance(writing, wall_ms, elapsed))?;
        let removed = self.forget_old(clock_ms)?;
        self.database.tidy()?;
        Ok(removed)
    }

    /// Forgets what is too old at a time, and what is too much, in portions between which others may write.
    pub fn forget_old(&self, now_ms: i64) -> Result<Removed> {
        let before = |age: Duration| now_ms.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
        let (batches_before, sessions_before) =
            (before(self.retention.age_max), before(self.retention.session_age_max));
        let mut all = Removed::default();
        loop {
            let removed = self.write(|writing| {
                let sessions = sessions::expire(writing, sessions_before, REMOVED_AT_ONCE)?;
                let removed = witness::expire(writing, batches_before, now_ms, REMOVED_AT_ONCE)?;
                Ok(Removed { sessions, ..removed })
            })?;
            all.add(removed);
            if removed.batches < REMOVED_AT_ONCE && removed.sessions < REMOVED_AT_ONCE {
                break;
            }
        }
        let bytes = self.database.used_bytes()?;
        let mut room = self.read(|reading| witness::room_needed(reading, bytes, self.retention.bytes_max))?;
        while room > 0 {
            let (removed, freed) = self.write(|writing| witness::make_room(writing, room, REMOVED_AT_ONCE))?;
            all.add(removed);
            room = if freed == 0 { 0 } else { room.saturating_sub(freed) };
        }
        Ok(all)
    }

    pub fn status(&self) -> Result<MemoryStatus> {
        let bytes = self.database.bytes()?;
        self.read(|reading| {
            let count = |reading: &mut dyn Reading, table: &str| {
                let row = first_row(reading, &format!("SELECT count(*) FROM {table}"), &[])?;
                Ok::<_, MemoryError>(row.map_or(Ok(0), |row| row[0].integer())? as u64)
            };
            let times = first_row(reading, "SELECT min(at_ms), max(at_ms) FROM witness", &[])?;
            let time = |at: usize| times.as_ref().and_then(|row| row[at].integer().ok());
            Ok(MemoryStatus {
                place: self.place(),
                encryption: self.database.encryption(),
                bytes,
                embedding: meta(reading, "embedding")?,
                dimension: self.dimension,
                entries: count(reading, "witness")?,
                sessions: count(reading, "sessions")?,
                policies: count(reading, "policies")?,
                vectors: count(reading, "vectors")?,
                edges: count(reading, "edges")?,
                first_ms: time(0),
                last_ms: time(1),
            })
        })
    }

    /// Reads every page of the file: each is authenticated, so a changed byte anywhere is found. Nothing is said of a server
    /// database, which has its own means.
    pub fn check(&self) -> Result<()> {
        self.embedded.as_ref().map_or(Ok(()), |(embedded, _)| embedded.check())
    }

    /// What the index of vectors takes in memory, where it is ours.
    pub fn index_bytes(&self) -> usize {
        self.embedded.as_ref().map_or(0, |(embedded, _)| embedded.index_bytes())
    }

    /// Copies the memory as it is now, while it is used. The copy has the same key.
    pub fn backup(&self, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let (embedded, _) = self.embedded.as_ref().ok_or(MemoryError::NotOnServer("a backup"))?;
        embedded.backup(to, progress)
    }

    /// Encrypts everything with another key: a random one, which is stored in place of the old one, or one that is given,
    /// where keys are kept elsewhere. Nobody else may use the memory meanwhile.
    pub fn rekey(&self, new: Option<Key>) -> Result<()> {
        let (embedded, source) = self.embedded.as_ref().ok_or(MemoryError::NotOnServer("another key"))?;
        let new = match (new, source) {
            (Some(new), _) => new,
            (None, KeySource::File(_)) => Key::random()?,
            (None, KeySource::Environment(_) | KeySource::Command(_)) => {
                return Err(MemoryError::invalid("key", "it is kept elsewhere: give the new one too"));
            }
        };
        embedded.rekey(&new, source)
    }
}

/// Puts a backup in the place of the memory in a folder, which nobody may use meanwhile. What was there is kept beside it.
pub fn restore_backup(from: &Path, folder: &Path, key: Option<&KeySource>) -> Result<()> {
    let path = folder.join(FILE);
    let key = key_source(folder, key).key_of(from)?;
    restore(from, &path, &key)
}
