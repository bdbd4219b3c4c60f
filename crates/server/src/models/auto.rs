//! The models that `auto` stands for.

use std::path::PathBuf;
use std::sync::Arc;

use super::{ModelInUse, Models, RunnerKind, ServedModel};

/// What requests name that leave the model to the server.
pub(crate) const AUTO: &str = "auto";

impl Models {
    /// Returns whether a name leaves the model to the server: `auto`, unless something here is called so.
    pub(crate) fn is_auto(&self, name: &str) -> bool {
        let short = name.strip_suffix(":latest").unwrap_or(name);
        short == AUTO && !self.is_model(short)
    }

    /// Returns the model that answers where nothing is known: the first generating one that was named at the start, or
    /// without any the loaded one that was used last.
    pub(crate) fn default_model(&self) -> Option<String> {
        let named = self.named_at_start();
        let kind = |name: &String| self.slots().get(name).and_then(|slot| Some(slot.model.get()?.runner.kind()));
        let generating = named.iter().find(|name| kind(name) == Some(RunnerKind::Generator));
        // One that waits for memory may still turn out to generate.
        if let Some(name) = generating.or_else(|| named.iter().find(|name| kind(name).is_none())) {
            return Some(name.clone());
        }
        let loaded = self.generating();
        loaded.iter().max_by_key(|model| model.uses()).map(|model| model.name.to_string())
    }

    /// Returns the model that stands for the server where only one can: the default one, if it is loaded.
    pub(crate) fn first_loaded(&self) -> Option<Arc<ServedModel>> {
        let default = self.default_model().and_then(|name| self.loaded_as(&name));
        default.or_else(|| Some(Arc::clone(&self.all_loaded().first()?.model)))
    }

    /// Returns the file of the default model, if that is loaded and generates.
    pub fn default_file(&self) -> Option<PathBuf> {
        let model = self.loaded_as(&self.default_model()?)?;
        model.runner.generator().map(|_| model.file.clone())
    }

    /// Returns the loaded models that can be chosen: those named at the start, or without any all. What one client has
    /// had loaded is not what others asked for.
    pub(crate) fn candidates(&self) -> Vec<ModelInUse> {
        let mut found = self.generating();
        if found.iter().any(|model| self.is_pinned(&model.name)) {
            found.retain(|model| self.is_pinned(&model.name));
        }
        found
    }

    fn generating(&self) -> Vec<ModelInUse> {
        let mut found = self.all_loaded();
        found.retain(|model| model.runner.kind() == RunnerKind::Generator);
        found
    }
}
