//! What tenants may count on of the cache.
//!
//! A tenant's name is a path, such as `acme/search`. The nearest name on it that has a quota counts: one that is given to
//! `acme` is shared by all of its parts that have none of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ruvllm_kv::{AccountId, KvCache, Namespace, Quota};
use ruvllm_runner::AdapterId;

use crate::Tenant;

/// A tenant, nobody where tenants share, and an adapter.
pub(crate) type Owner = (Tenant, Option<AdapterId>);

#[derive(Debug, Default)]
pub(crate) struct Tenants {
    accounts: BTreeMap<Tenant, AccountId>,
    /// All that ever asked for something, and where their prefixes are cached: one namespace for each adapter.
    known: BTreeMap<Tenant, BTreeSet<Namespace>>,
    /// Whose prefixes are cached in a namespace, and with which adapter.
    owners: HashMap<Namespace, Owner>,
}

impl Tenants {
    pub(crate) fn new(quotas: &[(Tenant, Quota)], cache: &mut KvCache) -> Self {
        let accounts = quotas.iter().map(|(tenant, quota)| (tenant.clone(), cache.open_account(*quota))).collect();
        Self { accounts, known: BTreeMap::new(), owners: HashMap::new() }
    }

    /// Sees to it that a tenant's pages are charged to the right account, and remembers whose a namespace is.
    pub(crate) fn meet(
        &mut self,
        tenant: &Tenant,
        namespace: Namespace,
        owner: impl FnOnce() -> Owner,
        cache: &mut KvCache,
    ) {
        self.owners.entry(namespace).or_insert_with(owner);
        if !self.known.entry(tenant.clone()).or_default().insert(namespace) {
            return;
        }
        if let Some(account) = self.account(tenant) {
            cache.assign(namespace, account);
        }
    }

    /// Returns whose prefixes are cached in a namespace.
    pub(crate) fn owner(&self, namespace: Namespace) -> Owner {
        self.owners.get(&namespace).cloned().unwrap_or_default()
    }

    pub(crate) fn known(&self) -> impl Iterator<Item = (&Tenant, &BTreeSet<Namespace>)> {
        self.known.iter()
    }

    /// The account of the nearest name that has one.
    fn account(&self, tenant: &Tenant) -> Option<AccountId> {
        let mut name = tenant.name();
        loop {
            if let Some(account) = self.accounts.get(name) {
                return Some(*account);
            }
            name = name.rsplit_once('/')?.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_kv::{KvOptions, Tiers};
    use ruvllm_runner::{KvShape, PageFormat};

    use super::*;

    #[test]
    fn the_nearest_name_with_a_quota_counts() {
        let options = KvOptions { budget_bytes: 1 << 20, ..KvOptions::new(Tiers::uniform(PageFormat::F16)) };
        let shape = KvShape::new(1, 1, 16);
        let mut cache = KvCache::new(shape, &options);
        let quotas = ["acme", "acme/search"].map(|name| (Tenant::new(name), Quota::default()));
        let tenants = Tenants::new(&quotas, &mut cache);
        let account = |name: &str| tenants.account(&Tenant::new(name));
        assert_eq!(account("acme/chat"), account("acme"));
        assert_eq!(account("acme/search/eu"), account("acme/search"));
        assert_ne!(account("acme"), account("acme/search"));
        assert!(account("acme").is_some());
        assert_eq!((account("acmes"), account("")), (None, None));
    }
}
