//! Kernel packs of loaded models.

use std::sync::Arc;
use std::time::Duration;

use ruvllm_runtime::{KernelChoice, KernelPackError};

use super::{LoadFailure, ModelError, ModelInUse, Models};

/// How often what running calls took is learned: a few entries in the memory each time.
const LEARN_EVERY: Duration = Duration::from_secs(300);

impl Models {
    /// Has loaded models use installed packs, or none; all models if none is named.
    pub async fn set_kernel_packs(
        self: &Arc<Self>,
        model: Option<&str>,
        packs: Vec<String>,
        choice: Option<KernelChoice>,
    ) -> Result<(), ModelError> {
        let users = self.users_of_kernel_packs(model)?;
        let loader = Arc::clone(&self.loader);
        let name = packs.join(", ");
        let failed = {
            let name = name.clone();
            move |error: LoadFailure| ModelError::KernelPack { name, error }
        };
        // Compiling and comparing takes a while.
        let set = tokio::task::spawn_blocking(move || {
            let packs = packs.iter().map(|pack| loader.kernel_pack(pack)).collect::<Result<Vec<_>, _>>()?;
            let choice = choice.unwrap_or_else(|| loader.kernel_choice());
            users
                .iter()
                .filter_map(|user| user.runner.generator())
                .try_for_each(|engine| engine.kernel_packs().set(packs.clone(), choice).map_err(LoadFailure::from))
        });
        set.await.map_err(|_| ModelError::Lost { name })?.map_err(failed)
    }

    /// Has loaded models use what they used before.
    pub fn rollback_kernel_pack(&self, model: Option<&str>) -> Result<(), ModelError> {
        let failed = |error: KernelPackError| ModelError::KernelPack { name: String::new(), error: error.into() };
        let users = self.users_of_kernel_packs(model)?;
        users
            .iter()
            .filter_map(|user| user.runner.generator())
            .try_for_each(|engine| engine.kernel_packs().rollback().map_err(failed))
    }

    /// Withdraws packs that fail or are slow. Must be called periodically.
    pub fn watch_kernel_packs(&self) {
        for model in self.all_loaded() {
            if let Some(engine) = model.runner.generator() {
                engine.kernel_packs().maintain();
            }
        }
    }

    /// Keeps what kernels of packs took, and chooses by it. Must be called periodically, on a thread that may block.
    pub fn learn_of_kernel_packs(&self) {
        for model in self.all_loaded() {
            if let Some(engine) = model.runner.generator() {
                engine.kernel_packs().remember(LEARN_EVERY);
            }
        }
    }

    fn users_of_kernel_packs(&self, model: Option<&str>) -> Result<Vec<ModelInUse>, ModelError> {
        let loaded: Vec<_> = self
            .all_loaded()
            .into_iter()
            .filter(|served| served.runner.generator().is_some() && model.is_none_or(|model| *served.name == *model))
            .collect();
        match model {
            Some(name) if loaded.is_empty() => Err(ModelError::NotLoaded { name: name.to_owned() }),
            _ => Ok(loaded),
        }
    }
}
