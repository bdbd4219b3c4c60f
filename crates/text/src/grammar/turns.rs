//! Taking turns at something of which only so much may happen at once.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub(super) struct Turns(Arc<State>);

struct State {
    free: Mutex<usize>,
    changed: Condvar,
}

/// Somebody's turn, until it is dropped.
pub(super) struct Turn(Arc<State>);

impl Turns {
    pub(super) fn new(at_once: usize) -> Self {
        Self(Arc::new(State { free: Mutex::new(at_once), changed: Condvar::new() }))
    }

    /// Waits for a turn; `None` if there is none in time.
    pub(super) fn take(&self, patience: Duration) -> Option<Turn> {
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.changed.wait_timeout_while(free, patience, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Turn(self.0.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_free_again_when_it_is_over() {
        let turns = Turns::new(1);
        let turn = turns.take(Duration::ZERO).unwrap();
        assert!(turns.take(Duration::from_millis(1)).is_none());
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take(Duration::from_secs(60)).is_some());
            drop(turn);
            waiting.join().unwrap()
        });
        assert!(waiting);
    }
}
