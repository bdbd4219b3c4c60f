//! What is known of adapters without loading them, as models that can be requested.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ruvllm_store::StoredAdapter;

use super::{KnownModel, ModelError, Models, ServedAdapter};

/// An adapter that can be requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAdapter {
    /// The name of its file or folder.
    pub file: String,
    /// Whether it is loaded; those in the store are loaded on their first request.
    pub is_loaded: bool,
}

impl Models {
    /// Returns all models that a tenant can request, with adapters of these.
    pub fn known_to(&self, tenant: &str) -> Vec<KnownModel> {
        let mut known = self.known();
        let adapters = {
            let bases: HashMap<&str, &KnownModel> = known.iter().map(|model| (model.name.as_str(), model)).collect();
            let visible = self.nameable(tenant);
            let mut named: HashMap<&str, usize> = HashMap::new();
            visible.iter().for_each(|adapter| *named.entry(&adapter.name).or_default() += 1);
            let mut adapters = Vec::new();
            for adapter in &visible {
                let Some(base) = bases.get(&*adapter.base) else { continue };
                adapters.push(base.with_loaded(adapter, named.get(&*adapter.name) == Some(&1)));
            }
            let loaded: HashSet<String> = visible.iter().map(|adapter| adapter.full_name()).collect();
            for (of, _, stored) in self.stored_adapters() {
                let Some(base) = bases.get(of.as_str()).filter(|_| !loaded.contains(&stored.name)) else { continue };
                adapters.push(base.with_stored(stored));
            }
            adapters
        };
        known.extend(adapters);
        known
    }

    /// Returns the model or adapter of this name, as far as a tenant may see it. Adapters have two names: `NAME`, and
    /// `BASE:NAME`.
    pub fn find_known_to(&self, name: &str, tenant: &str) -> Result<KnownModel, ModelError> {
        self.find_known(name).or_else(|unknown| self.find_known_adapter(name, tenant).ok_or(unknown))
    }

    fn find_known_adapter(&self, name: &str, tenant: &str) -> Option<KnownModel> {
        let full = name.strip_suffix(":latest").unwrap_or(name);
        let (base, short) = full.rsplit_once(':').map_or((None, full), |(base, short)| (Some(base), short));
        let found = self.table().find(tenant, base, short);
        let named = self.table().find(tenant, None, short).len();
        match (&found[..], base) {
            ([adapter], _) => Some(self.find_known(&adapter.base).ok()?.with_loaded(adapter, named == 1)),
            ([], Some(base)) => {
                let stored = self.store.adapter(full).ok()?;
                Some(self.find_known(base).ok()?.with_stored(stored))
            }
            _ => None,
        }
    }

    /// Returns the adapters that a tenant can name: its own hide those of all.
    fn nameable(&self, tenant: &str) -> Vec<Arc<ServedAdapter>> {
        let table = self.table();
        let is_meant = |adapter: &Arc<ServedAdapter>| {
            table.find(tenant, Some(&adapter.base), &adapter.name).pop().as_ref() == Some(adapter)
        };
        table.visible(tenant).into_iter().filter(is_meant).collect()
    }
}

impl KnownModel {
    /// Returns what is known of a loaded adapter of this model: under its short name, if no other model has one of that name.
    fn with_loaded(&self, adapter: &ServedAdapter, is_unique: bool) -> Self {
        let name = if is_unique { adapter.name.to_string() } else { adapter.full_name() };
        let facts = KnownAdapter { file: adapter.file_name(), is_loaded: true };
        self.with_adapter(name, adapter.bytes as u64, adapter.digest(), adapter.loaded_at, facts)
    }

    fn with_stored(&self, stored: StoredAdapter) -> Self {
        let facts = KnownAdapter { file: stored.manifest.main.file.clone(), is_loaded: false };
        let pulled = SystemTime::UNIX_EPOCH + Duration::from_secs(stored.manifest.pulled_at_unix_s);
        let bytes = stored.manifest.bytes();
        self.with_adapter(stored.name, bytes, stored.digest, pulled, facts)
    }

    fn with_adapter(
        &self,
        name: String,
        bytes: u64,
        digest: String,
        modified: SystemTime,
        adapter: KnownAdapter,
    ) -> Self {
        let (base, sha256, adapter) = (Some(self.name.clone()), Some(digest), Some(adapter));
        Self { name, bytes, sha256, modified, base, adapter, ..self.clone() }
    }
}
