//! Adapters that were learned: what requests of a tenant, or of one of its users, are answered with that name none.
//!
//! Which ones is read from the memory whenever that has changed. They are in no table that requests can name: what
//! was learned from a tenant is served to that tenant alone.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::SystemTime;

use ruvllm_memory::{LearnedScope, Memory, MemoryError, ServedVersion};
use ruvllm_runtime::{AdapterId, LearnedFiles, adapter_id_of};

use super::adapter_table::ServedAdapter;
use super::{ModelInUse, Models};

/// Number of adapters that have no number in the table.
const NO_NUMBER: u32 = u32::MAX;

/// Who asks, as far as it decides about adapters.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    pub tenant: &'a str,
    pub user: Option<&'a str>,
    /// Whether its requests are learned from, and answered with what was learned.
    pub learns: bool,
}

/// What is served, as of the last look into the memory.
#[derive(Debug, Default)]
pub(super) struct LearnedAdapters {
    /// The memory's count of changes at that time.
    change: Option<i64>,
    by_scope: HashMap<LearnedScope, Learned>,
}

#[derive(Clone, Debug)]
struct Learned {
    adapter: Arc<ServedAdapter>,
    /// Fingerprint of the model's file that it was judged on.
    model_digest: String,
}

impl Models {
    /// Reads what was promoted, rolled back or forgotten since the last time. Running answers keep what they began
    /// with. May take a while: call it from a thread that may block.
    pub fn refresh_learned(&self, memory: &Memory) -> Result<(), MemoryError> {
        let Some(files) = &self.options.learned else { return Ok(()) };
        // The count first, so that a change in between is seen the next time.
        let change = memory.learning().served_change()?;
        if self.learned().change == Some(change) {
            return Ok(());
        }
        let served = memory.learning().served_versions()?;
        let found = served.into_iter().filter_map(|version| found(files, version)).collect();
        let before = std::mem::replace(&mut *self.learned(), LearnedAdapters { change: Some(change), by_scope: found });
        for Learned { adapter, .. } in before.by_scope.into_values() {
            self.unregister_unused(&adapter.base, adapter.id);
        }
        Ok(())
    }

    /// Takes what was forgotten out of service at once, and removes its files: weights could give away what they were
    /// learned from.
    pub(crate) fn forget_learned(&self, memory: &Memory) -> Result<(), MemoryError> {
        self.refresh_learned(memory)?;
        let Some(files) = &self.options.learned else { return Ok(()) };
        if let Err(error) = files.sweep(&memory.learning().version_adapters()?, false) {
            tracing::error!("adapters that were learned from what is forgotten are still on disk: {error}");
        }
        Ok(())
    }

    /// Returns what was learned from an asker: from the user rather than from all users of the tenant.
    pub(super) fn learned_for(&self, model: &ModelInUse, asker: Asker<'_>) -> Option<Arc<ServedAdapter>> {
        if !asker.learns {
            return None;
        }
        let scope = |user: Option<&str>| LearnedScope {
            tenant: asker.tenant.to_owned(),
            user: user.map(str::to_owned),
            model: model.name.to_string(),
        };
        let learned = self.learned();
        let of_user = asker.user.and_then(|user| learned.by_scope.get(&scope(Some(user))));
        let Learned { adapter, model_digest } = of_user.or_else(|| learned.by_scope.get(&scope(None)))?.clone();
        drop(learned);
        let engine = model.runner.generator()?;
        if engine.fingerprint() != model_digest {
            tracing::warn!(
                adapter = %adapter.full_name(), tenant = asker.tenant,
                "not used: it was judged on another file of the model; `ruvllm learn now` learns for this one"
            );
            return None;
        }
        Some(adapter)
    }

    /// Returns whether requests of some scope are answered with this content.
    pub(super) fn is_learned(&self, base: &str, id: AdapterId) -> bool {
        self.learned().by_scope.values().any(|learned| learned.adapter.id == id && *learned.adapter.base == *base)
    }

    fn learned(&self) -> MutexGuard<'_, LearnedAdapters> {
        // No operation under the lock can leave it inconsistent.
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a version with its files. Machines that share a server database have each their own: one that is not here
/// is told of.
fn found(files: &LearnedFiles, version: ServedVersion) -> Option<(LearnedScope, Learned)> {
    let ServedVersion { scope, version, adapter, model_digest } = version;
    let Some((source, id)) = files.find(&adapter).zip(adapter_id_of(&adapter)) else {
        tracing::error!(
            version,
            adapter,
            model = scope.model,
            tenant = scope.tenant,
            "a learned adapter is served and not on this machine: copy it to the folder of learned adapters, or roll \
             it back with `ruvllm learn rollback`; until then the model answers alone"
        );
        return None;
    };
    tracing::info!(version, adapter, model = scope.model, tenant = scope.tenant, "a learned adapter is served");
    let served = ServedAdapter {
        number: NO_NUMBER,
        name: format!("learned-{version}").into(),
        base: scope.model.as_str().into(),
        owner: Some(scope.tenant.as_str().into()),
        source,
        id,
        bytes: 0,
        rank: 0,
        loaded_at: SystemTime::now(),
    };
    Some((scope, Learned { adapter: Arc::new(served), model_digest }))
}
