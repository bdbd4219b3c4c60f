//! Taking turns at something of which only so much may happen at once, and of one tenant only a part of that.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub(super) struct Turns {
    shared: Arc<Shared>,
    at_once: usize,
    of_tenant: usize,
}

struct Shared {
    taken: Mutex<HashMap<String, usize>>,
    changed: Condvar,
}

/// Somebody's turn, until it is dropped.
pub(super) struct Turn {
    shared: Arc<Shared>,
    tenant: String,
}

impl Turns {
    pub(super) fn new(at_once: usize, of_tenant: usize) -> Self {
        Self { shared: Arc::new(Shared { taken: Mutex::default(), changed: Condvar::new() }), at_once, of_tenant }
    }

    /// Waits for a turn; `None` if there is none in time.
    pub(super) fn take(&self, tenant: &str, patience: Duration) -> Option<Turn> {
        let taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut HashMap<String, usize>| {
            taken.values().sum::<usize>() >= self.at_once || taken.get(tenant).is_some_and(|&own| own >= self.of_tenant)
        };
        let waited = self.shared.changed.wait_timeout_while(taken, patience, is_full);
        let (mut taken, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        if outcome.timed_out() {
            return None;
        }
        *taken.entry(tenant.to_owned()).or_default() += 1;
        Some(Turn { shared: self.shared.clone(), tenant: tenant.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.tenant);
            }
        }
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_free_again_when_it_is_over() {
        let turns = Turns::new(1, 1);
        let turn = turns.take("a", Duration::ZERO).unwrap();
        assert!(turns.take("b", Duration::from_millis(1)).is_none());
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take("b", Duration::from_secs(60)).is_some());
            drop(turn);
            waiting.join().unwrap()
        });
        assert!(waiting);
    }

    #[test]
    fn a_tenant_whose_turns_never_end_leaves_some_to_others() {
        let turns = Turns::new(3, 2);
        let _stuck = [turns.take("a", Duration::ZERO).unwrap(), turns.take("a", Duration::ZERO).unwrap()];
        assert!(turns.take("a", Duration::from_millis(1)).is_none());
        assert!(turns.take("b", Duration::ZERO).is_some());
    }
}
