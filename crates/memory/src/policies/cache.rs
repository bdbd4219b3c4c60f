//! Policies as requests see them: from memory, read again from the store when they are old.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Policy, defaults};
use crate::error::Result;

/// Tenants whose policies are kept at most; beyond that, all are read anew.
const TENANTS_MAX: usize = 10_000;

/// All policies that hold for one tenant, by type and name.
pub type Policies = BTreeMap<(String, String), Policy>;

/// Keeps what it read for a while, for each tenant.
#[derive(Debug)]
pub struct PolicyCache {
    lifetime: Duration,
    kept: Mutex<HashMap<String, (Instant, Arc<Policies>)>>,
}

impl PolicyCache {
    pub fn new(lifetime: Duration) -> Self {
        Self { lifetime, kept: Mutex::default() }
    }

    /// What holds for a tenant: its own before everybody's before the built-in ones. `read` gives the stored ones, those
    /// of a tenant after everybody's or before; if it fails, what was known before goes on to hold.
    pub fn of_tenant(&self, tenant: &str, read: impl FnOnce() -> Result<Vec<Policy>>) -> Result<Arc<Policies>> {
        let known = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(tenant).cloned();
        if let Some((read_at, policies)) = &known
            && read_at.elapsed() < self.lifetime
        {
            return Ok(Arc::clone(policies));
        }
        let stored = match (read(), known) {
            (Ok(stored), _) => stored,
            (Err(error), Some((_, policies))) => {
                tracing::warn!("policies could not be read again, the old ones hold: {error}");
                self.keep(tenant, &policies);
                return Ok(policies);
            }
            (Err(error), None) => return Err(error),
        };
        let policies = Arc::new(in_force(stored));
        self.keep(tenant, &policies);
        Ok(policies)
    }

    /// The next request reads them again.
    pub fn forget(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn keep(&self, tenant: &str, policies: &Arc<Policies>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= TENANTS_MAX {
            kept.clear();
        }
        kept.insert(tenant.to_owned(), (Instant::now(), Arc::clone(policies)));
    }
}

fn in_force(mut stored: Vec<Policy>) -> Policies {
    // Everybody's first, so that a tenant's own replace them.
    stored.sort_by_key(|policy| !policy.tenant.is_empty());
    let key = |policy: Policy| ((policy.kind.clone(), policy.name.clone()), policy);
    defaults().into_iter().chain(stored).map(key).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::MemoryError;

    fn router(tenant: &str, temperature: f64) -> Policy {
        Policy { tenant: tenant.into(), ..Policy::new("router", "default", json!({ "temperature": temperature })) }
    }

    fn temperature(policies: &Policies) -> Option<f64> {
        policies[&("router".to_owned(), "default".to_owned())].parameters["temperature"].as_f64()
    }

    #[test]
    fn a_tenants_own_come_before_everybodys_before_built_in_ones() {
        assert_eq!(temperature(&in_force(vec![])), None);
        assert_eq!(temperature(&in_force(vec![router("", 0.1)])), Some(0.1));
        assert_eq!(temperature(&in_force(vec![router("acme", 0.2), router("", 0.1)])), Some(0.2));
    }

    #[test]
    fn what_was_read_is_kept_for_its_time_and_if_the_store_fails() {
        let cache = PolicyCache::new(Duration::from_secs(3600));
        let read = |temperature| cache.of_tenant("a", move || Ok(vec![router("a", temperature)])).unwrap();
        assert_eq!(temperature(&read(0.1)), Some(0.1));
        assert_eq!(temperature(&read(0.2)), Some(0.1), "still fresh");
        cache.forget();
        assert_eq!(temperature(&read(0.3)), Some(0.3));

        let cache = PolicyCache::new(Duration::ZERO);
        let failing = || Err(MemoryError::damaged("test"));
        assert!(cache.of_tenant("a", failing).is_err(), "nothing is known yet");
        cache.of_tenant("a", || Ok(vec![router("a", 0.4)])).unwrap();
        assert_eq!(temperature(&cache.of_tenant("a", failing).unwrap()), Some(0.4));
    }
}
