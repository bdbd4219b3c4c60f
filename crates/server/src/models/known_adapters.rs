//! What is known of adapters without loading them, as models that can be requested.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

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
                // The short name, unless adapters of several models have it.
                let is_unique = named.get(&*adapter.name) == Some(&1);
                let name = if is_unique { adapter.name.to_string() } else { adapter.full_name() };
                let facts = KnownAdapter { file: adapter.file_name(), is_loaded: true };
                let (bytes, digest) = (adapter.bytes as u64, adapter.digest());
                adapters.push(base.with_adapter(name, bytes, digest, adapter.loaded_at, facts));
            }
            let loaded: HashSet<String> = visible.iter().map(|adapter| adapter.full_name()).collect();
            for (of, _, stored) in self.stored_adapters() {
                let Some(base) = bases.get(of.as_str()).filter(|_| !loaded.contains(&stored.name)) else { continue };
                let facts = KnownAdapter { file: stored.manifest.main.file.clone(), is_loaded: false };
                let pulled = SystemTime::UNIX_EPOCH + Duration::from_secs(stored.manifest.pulled_at_unix_s);
                let bytes = stored.manifest.bytes();
                adapters.push(base.with_adapter(stored.name, bytes, stored.digest, pulled, facts));
            }
            adapters
        };
        known.extend(adapters);
        known
    }

    /// Returns the model or adapter of this name, as far as a tenant may see it. Adapters have two names: `NAME`, and
    /// `BASE:NAME`.
    pub fn find_known_to(&self, name: &str, tenant: &str) -> Result<KnownModel, ModelError> {
        let unknown = match self.find_known(name) {
            Ok(known) => return Ok(known),
            Err(unknown) => unknown,
        };
        let short = name.strip_suffix(":latest").unwrap_or(name);
        let is_it = |model: &KnownModel| {
            let full = || model.base.as_ref().map(|base| format!("{base}:{}", model.name));
            model.adapter.is_some() && (model.name == short || full().as_deref() == Some(short))
        };
        self.known_to(tenant).into_iter().find(is_it).ok_or(unknown)
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
    /// Returns what is known of an adapter of this model.
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
