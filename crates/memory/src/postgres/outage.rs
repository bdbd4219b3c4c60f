//! While the server does not answer, callers are refused at once, except for one now and then that tries whether it is back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{MemoryError, Result};

/// Time between two attempts.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Outage {
    /// When the next caller may try; `None` while the server answers.
    next_try: Mutex<Option<Instant>>,
}

impl Outage {
    /// Lets a caller ask the server, or refuses it at once.
    pub fn enter(&self, now: Instant) -> Result<()> {
        let mut next_try = self.next_try();
        match *next_try {
            Some(at) if now < at => Err(MemoryError::Unavailable("it did not answer a moment ago".into())),
            Some(_) => {
                *next_try = Some(now + RETRY);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes note of the outcome.
    pub fn note<T>(&self, result: &Result<T>, now: Instant) {
        *self.next_try() = match result {
            Err(MemoryError::Connect(_) | MemoryError::Unavailable(_) | MemoryError::Doubtful(_)) => Some(now + RETRY),
            // Without a code, the error is not the server's.
            Err(MemoryError::Postgres(error)) if error.code().is_none() => Some(now + RETRY),
            _ => None,
        };
    }

    fn next_try(&self) -> MutexGuard<'_, Option<Instant>> {
        self.next_try.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_a_server_is_away_one_asks_for_all() {
        let (outage, start) = (Outage::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(outage.enter(at(0)).is_ok() && outage.enter(at(0)).is_ok());
        outage.note::<()>(&Err(MemoryError::Unavailable("test".into())), at(10));
        assert!(outage.enter(at(900)).is_err());
        assert!(outage.enter(at(1020)).is_ok(), "one may try");
        assert!(outage.enter(at(1030)).is_err(), "and only one");
        outage.note(&Ok(()), at(1040));
        assert!(outage.enter(at(1050)).is_ok() && outage.enter(at(1051)).is_ok());
        // An error of a statement says nothing about the server.
        outage.note::<()>(&Err(MemoryError::damaged("test")), at(1060));
        assert!(outage.enter(at(1061)).is_ok());
    }
}
