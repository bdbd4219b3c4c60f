//! Adapters in memory: those that requests hold, within the budget of all models.

use std::path::Path;
use std::sync::Arc;

use ruvllm_runtime::{AdapterError, Adapters, HeldAdapter};

use crate::models::{ModelError, Models, ServedAdapter, ServedModel};

impl Models {
    /// Makes the adapters of a request resident. May read files: call it from a thread that may block.
    pub(crate) fn hold(
        &self,
        model: &ServedModel,
        chosen: &[(Arc<ServedAdapter>, f32)],
    ) -> Result<Option<HeldAdapter>, ModelError> {
        if chosen.is_empty() {
            return Ok(None);
        }
        chosen.iter().for_each(|(adapter, _)| self.metrics.adapter_requested(&adapter.base, &adapter.name));
        let adapters = model.generator()?.adapters();
        let wanted: Vec<_> = chosen.iter().map(|(adapter, weight)| (adapter.id, *weight)).collect();
        let names = chosen.iter().map(|(adapter, _)| &*adapter.name).collect::<Vec<_>>().join(", ");
        let source = chosen.first().map_or(Path::new(""), |(adapter, _)| &adapter.source);
        let failed = |error| failed(&names, source, error);
        match adapters.hold(&wanted) {
            Ok(held) => return Ok(Some(held)),
            Err(AdapterError::NotRegistered(_)) => {}
            Err(error) => return Err(failed(error)),
        }
        // The engine is new, or the adapter was unloaded since the request found it.
        self.reserve_adapters(model)?;
        for (adapter, _) in chosen {
            let registered = adapters.register(adapter.source.clone()).map_err(failed)?;
            if registered.id != adapter.id {
                adapters.unregister(registered.id);
                return Err(ModelError::AdapterChanged { name: adapter.name.to_string() });
            }
        }
        self.share_out_adapters();
        let held = adapters.hold(&wanted).map_err(failed);
        let is_gone =
            |adapter: &ServedAdapter| !self.table().holds(adapter) && !self.is_learned(&adapter.base, adapter.id);
        for (adapter, _) in chosen.iter().filter(|(adapter, _)| is_gone(adapter)) {
            self.unregister_unused(&adapter.base, adapter.id);
        }
        held.map(Some)
    }

    /// Divides the memory for adapters among the models that have any.
    pub(in crate::models) fn share_out_adapters(&self) {
        let loaded = self.all_loaded();
        let engines: Vec<_> = loaded.iter().filter_map(|model| model.runner.generator()).collect();
        let is_in_use = |adapters: &&Adapters| adapters.stats().registered > 0;
        let in_use: Vec<_> = engines.iter().map(|engine| engine.adapters()).filter(is_in_use).collect();
        let share = self.options.adapter_bytes / in_use.len().max(1);
        in_use.iter().for_each(|adapters| adapters.set_budget(share));
    }
}

/// Says why an adapter cannot be used. The folder that it lies in is for the log only.
pub(super) fn failed(name: &str, source: &Path, error: AdapterError) -> ModelError {
    tracing::warn!(adapter = name, "{error}");
    let folder = source.parent().map(|folder| format!("{}/", folder.display())).filter(|folder| folder.len() > 1);
    let told = folder.map_or_else(|| error.to_string(), |folder| error.to_string().replace(&folder, ""));
    ModelError::Adapter { name: name.to_owned(), told, error: Box::new(error) }
}
