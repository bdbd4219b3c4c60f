//! Changes of the store: fetching, making and removing models. Whoever may ask for them is decided by the endpoints.

use std::sync::Arc;

use ruvllm_store::{ModelFile, ModelSettings, Progress, StoreError};

use super::auto::AUTO;
use super::{ModelError, Models};

/// Maximum number of models that are fetched concurrently; others wait.
pub(super) const PULLS_MAX: usize = 2;

impl Models {
    /// Fetches a model of the catalogue or of the hub, or finds it here.
    pub async fn pull(
        self: &Arc<Self>,
        name: &str,
        mut progress: impl Progress + Send + 'static,
    ) -> Result<ModelFile, ModelError> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.pulls).acquire_owned().await.ok();
        let (store, spec) = (Arc::clone(&self.store), name.to_owned());
        let pulled = tokio::task::spawn_blocking(move || {
            let pulled = store.pull_remote(&spec, &mut progress);
            drop(permit);
            pulled
        });
        Ok(pulled.await.map_err(|_| ModelError::Lost { name: name.to_owned() })??)
    }

    /// Makes a model with the file of another and settings of its own.
    pub async fn derive(
        self: &Arc<Self>,
        name: &str,
        from: &str,
        settings: ModelSettings,
    ) -> Result<ModelFile, ModelError> {
        let short = name.strip_suffix(":latest").unwrap_or(name);
        if short == AUTO || self.options.aliases.contains_key(short) || self.slots().contains_key(short) {
            return Err(ModelError::Taken { name: short.to_owned() });
        }
        let alias = |name: &str| self.options.aliases.get(name).cloned();
        let from = alias(from).or_else(|| alias(from.strip_suffix(":latest")?)).unwrap_or_else(|| from.to_owned());
        let (store, new) = (Arc::clone(&self.store), name.to_owned());
        let made = tokio::task::spawn_blocking(move || store.derive(&new, &from, settings));
        Ok(made.await.map_err(|_| ModelError::Lost { name: name.to_owned() })??)
    }

    /// Removes a model from the store, unloaded before if it is idle.
    pub async fn remove(self: &Arc<Self>, name: &str) -> Result<(), ModelError> {
        if self.options.aliases.contains_key(name.strip_suffix(":latest").unwrap_or(name)) {
            return Err(ModelError::Taken { name: name.to_owned() });
        }
        let known = self.find_known(name)?.name;
        if self.is_pinned(&known) {
            return Err(ModelError::Pinned { name: known });
        }
        self.unload_before_removal(&known).await?;
        let (store, gone) = (Arc::clone(&self.store), known.clone());
        let removed = tokio::task::spawn_blocking(move || store.remove(&gone));
        Ok(removed.await.map_err(|_| ModelError::Lost { name: known })??)
    }

    async fn unload_before_removal(self: &Arc<Self>, name: &str) -> Result<(), ModelError> {
        let slot = {
            let mut slots = self.slots();
            match slots.get(name) {
                Some(slot) if !slot.users.is_idle() => {
                    return Err(StoreError::Busy { name: name.to_owned() }.into());
                }
                Some(_) => slots.remove(name),
                None => None,
            }
        };
        if slot.is_some() {
            self.unload_slot(slot).await;
        }
        Ok(())
    }
}
