//! Makes room for models, and distributes the rest of the memory to their KV caches.
//!
//! Everything here may wait for a step of an engine or for its end: call it from threads that may block.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use ruvllm_runtime::{ModelMemory, trim_allocator};

use super::{ModelError, Models, ServedModel, Slot};
use crate::memory_budget::{MemoryReport, Share};

impl Models {
    /// Reserves memory for a model. Idle models may be unloaded for it: first those that were not named at the start,
    /// and of these the least recently used.
    pub(super) fn reserve(&self, name: &str, memory: ModelMemory) -> Result<Share, ModelError> {
        let _sharing = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = &self.options.memory;
        while budget.count() >= self.options.loaded_max {
            let idle = self.take_idle(|slot| !slot.is_pinned).ok_or(ModelError::Full { loaded: budget.count() })?;
            tracing::info!(model = %idle.name, "unloaded: {name} is needed and --models-max is reached");
        }
        let share = loop {
            let shortage = match budget.reserve(name, memory) {
                Ok(share) => break share,
                Err(shortage) => shortage,
            };
            // Unloading idle models does not help a model that needs more than all of the memory.
            let idle = if memory.min_bytes() > budget.for_models() {
                None
            } else {
                self.take_idle(|slot| !slot.is_pinned).or_else(|| self.take_idle(|_| true))
            };
            let Some(idle) = idle else {
                let (needed_bytes, free_bytes) = (memory.min_bytes(), shortage.free_bytes);
                let loaded = budget.report().models.into_iter().map(|share| {
                    (
                        share.model,
                        share.weights_bytes.saturating_add(share.working_bytes).saturating_add(share.kv_bytes),
                    )
                });
                let fits_alone = needed_bytes <= budget.for_models();
                let loaded = if fits_alone { loaded.collect() } else { Vec::new() };
                return Err(ModelError::NoRoom { name: name.to_owned(), needed_bytes, free_bytes, loaded });
            };
            tracing::info!(model = %idle.name, "unloaded: its memory is needed for {name}");
            drop(idle);
            trim_allocator();
        };
        // The model's memory is free before it is loaded.
        self.apply_shares(self.all_loaded().iter().map(|model| &**model));
        Ok(share)
    }

    /// Takes the least recently used idle model out of its slot, among those that `may_go`.
    fn take_idle(&self, may_go: impl Fn(&Slot) -> bool) -> Option<Arc<ServedModel>> {
        let mut slots = self.slots();
        let idle = slots.iter().filter_map(|(name, slot)| {
            let model = slot.model.get().filter(|_| slot.users.is_idle())?;
            may_go(slot).then(|| (model.used.load(Ordering::Relaxed), name.clone()))
        });
        let (_, name) = idle.min()?;
        let slot = if slots[&name].is_pinned {
            let emptied = slots[&name].emptied();
            slots.insert(name, emptied)
        } else {
            slots.remove(&name)
        };
        slot?.model.get().cloned()
    }

    /// Sets the KV budgets of all engines: those that shrink first.
    pub(super) fn share_out(&self) {
        let _sharing = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        self.apply_shares(self.all_loaded().iter().map(|model| &**model));
    }

    /// Does the same with a model that is not in its slot yet.
    pub(super) fn share_out_with(&self, model: &ServedModel) {
        let _sharing = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = self.all_loaded();
        self.apply_shares(loaded.iter().map(|model| &**model).chain([model]));
    }

    fn apply_shares<'m>(&self, models: impl Iterator<Item = &'m ServedModel>) {
        let shares = self.options.memory.kv_shares();
        let share_of =
            |model: &ServedModel| shares.iter().find(|(id, _)| *id == model.share.id).map(|(_, bytes)| *bytes);
        let change = |model| share_of(model).map(|bytes| (model, bytes));
        let is_new = |(model, bytes): &(&ServedModel, usize)| model.share.kv_bytes() != Some(*bytes);
        let mut changes: Vec<_> = models.filter_map(change).filter(is_new).collect();
        changes.sort_by_key(|(model, bytes)| model.share.kv_bytes().is_some_and(|before| *bytes > before));
        for (model, bytes) in changes {
            let Some(engine) = model.runner.generator() else { continue };
            match engine.set_kv_budget(bytes) {
                Ok(true) => {}
                Ok(false) => tracing::warn!(model = %model.name, "a running sequence holds more KV memory than its \
                                                                  model's share"),
                // The next request notices the failure and loads the model again.
                Err(error) => tracing::warn!(model = %model.name, "{error}"),
            }
            model.share.has_kv(bytes);
        }
    }

    /// Takes memory for adapters from the KV caches, before a model gets its first one.
    pub(super) fn reserve_adapters(&self, model: &ServedModel) -> Result<(), ModelError> {
        let _sharing = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let buffers = model.generator()?.adapters().input_buffer_bytes();
        let is_less = model.share.take_adapters(buffers).map_err(|shortage| ModelError::NoRoomForAdapters {
            needed_bytes: shortage.needed_bytes,
            free_bytes: shortage.free_bytes,
        })?;
        if is_less {
            self.apply_shares(self.all_loaded().iter().map(|model| &**model));
        }
        Ok(())
    }

    /// Gives memory for adapters back to the KV caches where none are left, and takes it where one was registered meanwhile.
    fn review_adapters(&self) {
        for model in self.all_loaded() {
            let Some(engine) = model.runner.generator() else { continue };
            let stats = engine.adapters().stats();
            if stats.registered == 0 && stats.hot == 0 {
                model.share.give_back_adapters();
            } else if let Err(error) = self.reserve_adapters(&model) {
                tracing::warn!(model = %model.name, "{error}");
            }
        }
    }

    /// Unloads models that were idle for too long, and distributes free memory. Must be called periodically.
    pub fn maintain(&self) {
        self.unload_expired();
        self.review_adapters();
        self.share_out();
        self.share_out_adapters();
        // Returns memory that requests have freed.
        trim_allocator();
    }

    fn unload_expired(&self) {
        let now = Instant::now();
        let is_over = |slot: &Slot| {
            let expires = slot.model.get().and_then(|model| model.expires(self.options.keep_alive));
            !slot.is_pinned && expires.is_some_and(|at| at <= now)
        };
        while let Some(idle) = self.take_idle(is_over) {
            tracing::info!(model = %idle.name, "unloaded: idle for longer than its keep-alive");
        }
    }

    /// Unloads what is no longer to be kept, without waiting for the next maintenance.
    pub async fn unload_what_expired(self: &Arc<Self>) {
        let models = Arc::clone(self);
        let unloading = tokio::task::spawn_blocking(move || {
            models.unload_expired();
            models.share_out();
        });
        if unloading.await.is_err() {
            tracing::error!("unloading a model failed");
        }
    }

    /// Drops a model; waits for its end if it is idle.
    pub(super) async fn unload_slot(self: &Arc<Self>, slot: Option<Arc<Slot>>) {
        if let Some(model) = slot.as_ref().and_then(|slot| slot.model.get()) {
            model.share.leave();
        }
        let models = Arc::clone(self);
        // Its cached pages are written to disk at its end.
        let ended = tokio::task::spawn_blocking(move || {
            drop(slot);
            models.share_out();
        });
        if ended.await.is_err() {
            tracing::error!("unloading a model failed");
        }
    }

    /// Returns how the memory is divided, for operators.
    pub fn memory(&self) -> MemoryReport {
        self.options.memory.report()
    }
}
