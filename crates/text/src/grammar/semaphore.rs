//! A semaphore whose permits are limited in all and per tenant.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub(super) struct Semaphore {
    shared: Arc<Shared>,
    permits_max: usize,
    permits_per_tenant_max: usize,
}

struct Shared {
    taken: Mutex<HashMap<String, usize>>,
    changed: Condvar,
}

/// Is held until it is dropped.
pub(super) struct Permit {
    shared: Arc<Shared>,
    tenant: String,
}

impl Semaphore {
    pub(super) fn new(permits_max: usize, permits_per_tenant_max: usize) -> Self {
        let shared = Arc::new(Shared { taken: Mutex::default(), changed: Condvar::new() });
        Self { shared, permits_max, permits_per_tenant_max }
    }

    /// Waits for a permit; `None` if none is free in time.
    pub(super) fn acquire(&self, tenant: &str, timeout: Duration) -> Option<Permit> {
        let taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut HashMap<String, usize>| {
            taken.values().sum::<usize>() >= self.permits_max
                || taken.get(tenant).is_some_and(|&own| own >= self.permits_per_tenant_max)
        };
        let waited = self.shared.changed.wait_timeout_while(taken, timeout, is_full);
        let (mut taken, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        if outcome.timed_out() {
            return None;
        }
        *taken.entry(tenant.to_owned()).or_default() += 1;
        Some(Permit { shared: self.shared.clone(), tenant: tenant.to_owned() })
    }
}

impl Drop for Permit {
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
    fn a_dropped_permit_is_free_again() {
        let semaphore = Semaphore::new(1, 1);
        let permit = semaphore.acquire("a", Duration::ZERO).unwrap();
        assert!(semaphore.acquire("b", Duration::from_millis(1)).is_none());
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| semaphore.acquire("b", Duration::from_secs(60)).is_some());
            drop(permit);
            waiting.join().unwrap()
        });
        assert!(waiting);
    }

    #[test]
    fn a_tenant_that_holds_its_permits_leaves_some_to_others() {
        let semaphore = Semaphore::new(3, 2);
        let _held = [(); 2].map(|()| semaphore.acquire("a", Duration::ZERO).unwrap());
        assert!(semaphore.acquire("a", Duration::from_millis(1)).is_none());
        assert!(semaphore.acquire("b", Duration::ZERO).is_some());
    }
}
