//! The clock that retention goes by. A machine's clock may jump, by a wrong date at its start or a mistake of its user; what
//! was kept for weeks must not be removed a minute later.
//!
//! This clock follows the machine's, but never moves, in either direction, faster than [`RATE_MAX`] times the time that really
//! passes while a server runs. After a jump there are hours to notice it; after a pause it catches up one day per hour. It is
//! kept in the store, so that a restart does not reset it.

use std::time::Duration;

use crate::database::{Writing, first_row};
use crate::error::Result;
use crate::schema::{meta, set_meta};

const NAME: &str = "clock_ms";

const RATE_MAX: i64 = 24;

/// 2020. A clock that shows an earlier time was never set.
const BEGINNING_MS: i64 = 1_577_836_800_000;

/// Advances the clock by `elapsed` of real time towards `wall_ms` on the machine's clock. Returns the new time.
pub(crate) fn advance(database: &mut dyn Writing, wall_ms: i64, elapsed: Duration) -> Result<i64> {
    let stored = now(database)?;
    let before = match stored {
        Some(stored) => stored,
        None => newest(database)?.unwrap_or(wall_ms),
    };
    let after = follow(before, wall_ms, elapsed);
    if stored != Some(after) {
        set_meta(database, NAME, &after.to_string())?;
    }
    Ok(after)
}

/// Returns the time that was last stored.
pub(crate) fn now(database: &mut dyn Writing) -> Result<Option<i64>> {
    let stored = meta(database, NAME)?.and_then(|text| text.parse().ok());
    Ok(stored.filter(|at_ms| *at_ms >= BEGINNING_MS))
}

/// Returns the time of the newest batch, for a store that has no clock yet.
fn newest(database: &mut dyn Writing) -> Result<Option<i64>> {
    let row = first_row(database, "SELECT at_ms FROM batches ORDER BY id DESC LIMIT 1", &[])?;
    let at_ms = row.map(|row| row[0].integer()).transpose()?;
    Ok(at_ms.filter(|at_ms| *at_ms >= BEGINNING_MS))
}

fn follow(clock_ms: i64, wall_ms: i64, elapsed: Duration) -> i64 {
    if clock_ms < BEGINNING_MS {
        return wall_ms;
    }
    let reach = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX / RATE_MAX).saturating_mul(RATE_MAX);
    clock_ms.saturating_add(wall_ms.saturating_sub(clock_ms).clamp(-reach, reach))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const MINUTE_MS: i64 = 60_000;
    const DAY_MS: i64 = 24 * 60 * MINUTE_MS;

    #[test]
    fn the_clock_follows_and_never_jumps() {
        let now = 1_800_000_000_000;
        assert_eq!(follow(now, now + MINUTE_MS, MINUTE), now + MINUTE_MS);
        assert_eq!(follow(now, now + 60 * DAY_MS, MINUTE), now + 24 * MINUTE_MS);
        assert_eq!(follow(now, 0, MINUTE), now - 24 * MINUTE_MS, "1970 is not believed either");
        assert_eq!(follow(now, now + 60 * DAY_MS, Duration::ZERO), now);
        assert_eq!(follow(now, i64::MAX, Duration::MAX), i64::MAX);
        let mut clock = now;
        for _ in 0..60 {
            clock = follow(clock, now + DAY_MS, MINUTE);
        }
        assert_eq!(clock, now + DAY_MS, "a day is caught up with in an hour");
        assert_eq!(follow(1000, now, MINUTE), now, "a machine that learned the time");
    }
}
