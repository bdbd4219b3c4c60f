//! Kernel packs of loaded models.

use std::sync::Arc;

use ruvllm_runtime::KernelPackError;

use super::{ModelError, ModelInUse, Models};

impl Models {
    /// Has loaded models use an installed pack, or none; all models if none is named.
    pub async fn set_kernel_pack(
        self: &Arc<Self>,
        model: Option<&str>,
        pack: Option<String>,
    ) -> Result<(), ModelError> {
        let users = self.users_of_kernel_packs(model)?;
        let loader = Arc::clone(&self.loader);
        let name = pack.clone().unwrap_or_default();
        let failed = {
            let name = name.clone();
            move |error: super::LoadFailure| ModelError::KernelPack { name, error }
        };
        // Compiling and comparing takes a while.
        let set = tokio::task::spawn_blocking(move || {
            let pack = pack.map(|pack| loader.kernel_pack(&pack)).transpose()?;
            users
                .iter()
                .filter_map(|user| user.runner.generator())
                .try_for_each(|engine| engine.kernel_packs().set(pack.clone()).map_err(super::LoadFailure::from))
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
