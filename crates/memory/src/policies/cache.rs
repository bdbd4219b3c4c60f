//! All stored policies in memory. Requests never read the store for them; a thread of the recorder checks regularly whether
//! they have changed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Policy, defaults};
use crate::error::Result;

/// Maximum number of tenants whose policies in force are kept ready.
const TENANTS_MAX: usize = 10_000;

/// The policies in force for one tenant, by type and name.
pub type Policies = BTreeMap<(String, String), Policy>;

/// Cache of the stored policies.
#[derive(Debug, Default)]
pub(crate) struct PolicyCache {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Version that was read; `None` before the first read.
    version: Option<i64>,
    /// All stored policies by tenant. The empty tenant has those for all tenants.
    stored: HashMap<String, Vec<Policy>>,
    ready: HashMap<String, Arc<Policies>>,
}

impl PolicyCache {
    /// Returns the policies in force for a tenant: its own take precedence over those for all tenants, and these over the
    /// built-in ones.
    pub fn of_tenant(&self, tenant: &str) -> Arc<Policies> {
        let mut known = self.known();
        if let Some(ready) = known.ready.get(tenant) {
            return Arc::clone(ready);
        }
        let of = |name: &str| known.stored.get(name).into_iter().flatten().cloned();
        let policies = Arc::new(in_force(of("").chain(of(tenant))));
        if known.ready.len() >= TENANTS_MAX {
            known.ready.clear();
        }
        known.ready.insert(tenant.to_owned(), Arc::clone(&policies));
        policies
    }

    /// Reads all policies if the version has changed. If that fails, the known ones stay in force. Does not block readers of
    /// the cache.
    pub fn refresh(
        &self,
        version: impl FnOnce() -> Result<i64>,
        read: impl FnOnce() -> Result<Vec<Policy>>,
    ) -> Result<()> {
        // The version first, so that a change in between is seen the next time.
        let version = version()?;
        if self.known().version == Some(version) {
            return Ok(());
        }
        let mut stored: HashMap<String, Vec<Policy>> = HashMap::new();
        for policy in read()? {
            stored.entry(policy.tenant.clone()).or_default().push(policy);
        }
        *self.known() = Known { version: Some(version), stored, ready: HashMap::new() };
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Later policies replace earlier ones.
fn in_force(stored: impl Iterator<Item = Policy>) -> Policies {
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
        let cache = PolicyCache::default();
        assert_eq!(temperature(&cache.of_tenant("acme")), None);
        cache.refresh(|| Ok(1), || Ok(vec![router("", 0.1)])).unwrap();
        assert_eq!(temperature(&cache.of_tenant("acme")), Some(0.1));
        cache.refresh(|| Ok(2), || Ok(vec![router("acme", 0.2), router("", 0.1)])).unwrap();
        assert_eq!(temperature(&cache.of_tenant("acme")), Some(0.2));
        assert_eq!(temperature(&cache.of_tenant("other")), Some(0.1));
    }

    #[test]
    fn they_are_read_when_they_changed_and_hold_if_the_store_fails() {
        let cache = PolicyCache::default();
        cache.refresh(|| Ok(1), || Ok(vec![router("a", 0.1)])).unwrap();
        cache.refresh(|| Ok(1), || panic!("nothing has changed")).unwrap();
        let failing = || Err(MemoryError::damaged("test"));
        assert!(cache.refresh(failing, || panic!("not to be read")).is_err());
        assert!(cache.refresh(|| Ok(2), || Err(MemoryError::damaged("test"))).is_err());
        assert_eq!(temperature(&cache.of_tenant("a")), Some(0.1));
        cache.refresh(|| Ok(2), || Ok(vec![router("a", 0.3)])).unwrap();
        assert_eq!(temperature(&cache.of_tenant("a")), Some(0.3), "it is tried again");
    }
}
