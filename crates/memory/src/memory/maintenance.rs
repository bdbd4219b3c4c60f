//! Retention and tidying up, once a minute while a recorder runs.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{Memory, now_ms};
use crate::clock;
use crate::error::Result;
use crate::learning;
use crate::sessions;
use crate::witness::{self, Removed};

/// Maximum number of batches, of sessions and of trajectories removed in one transaction.
const REMOVED_AT_ONCE: usize = 50;

impl Memory {
    /// Removes what retention no longer covers, and tidies up.
    pub fn maintain(&self) -> Result<Removed> {
        let mut maintained = self.maintained.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = std::mem::replace(&mut *maintained, Instant::now()).elapsed();
        drop(maintained);
        self.maintain_at(now_ms(), elapsed)
    }

    /// Does the same with a given wall clock and the time that has really passed since the last maintenance. Ages follow the
    /// wall clock only as far as the elapsed time makes it believable.
    pub fn maintain_at(&self, wall_ms: i64, elapsed: Duration) -> Result<Removed> {
        let clock_ms = self.write(|writing| clock::advance(writing, wall_ms, elapsed))?;
        let removed = self.apply_retention(clock_ms)?;
        self.database.tidy()?;
        Ok(removed)
    }

    /// Removes what is too old at `now_ms`, and the oldest of what takes too much space.
    pub fn apply_retention(&self, now_ms: i64) -> Result<Removed> {
        let mut removed = self.remove_old(now_ms)?;
        removed.add(self.make_room()?);
        Ok(removed)
    }

    /// Works in portions, between which others may write.
    fn remove_old(&self, now_ms: i64) -> Result<Removed> {
        let before = |age: Duration| now_ms.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
        let batches_before = before(self.retention.age_max);
        let sessions_before = before(self.retention.session_age_max);
        let trajectories_before = before(self.retention.learn_age_max);
        let mut all = Removed::default();
        loop {
            let removed = self.write(|writing| {
                let sessions = sessions::expire(writing, sessions_before, REMOVED_AT_ONCE)?;
                let trajectories = learning::expire(writing, trajectories_before, REMOVED_AT_ONCE)?;
                let removed = witness::expire(writing, batches_before, now_ms, REMOVED_AT_ONCE)?;
                Ok(Removed { sessions, trajectories, ..removed })
            })?;
            all.add(removed);
            let most = removed.batches.max(removed.sessions).max(removed.trajectories);
            if most < REMOVED_AT_ONCE {
                return Ok(all);
            }
        }
    }

    fn make_room(&self) -> Result<Removed> {
        let mut all = Removed::default();
        loop {
            let bytes_max = self.retention.learn_bytes_max;
            let removed = self.write(|writing| learning::keep_size(writing, bytes_max, REMOVED_AT_ONCE))?;
            all.trajectories += removed;
            if removed < REMOVED_AT_ONCE {
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
}
