//! Making room for models, and sharing out what is left to keys and values.
//!
//! Everything here may wait for a step of an engine or for the end of one: it is for threads that may be blocked.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use ruvllm_runtime::{ModelMemory, trim_allocator};

use super::{ModelError, Models, ServedModel, Slot};
use crate::memory_budget::{MemoryReport, Share};

impl Models {
    /// Takes a place for a model in the budget. Others that nobody uses may have to go for it: those first that were not named
    /// at the start, and of these the one that was used least recently.
    pub(super) fn reserve(&self, name: &str, memory: ModelMemory) -> Result<Share, ModelError> {
        let _sharing = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = &self.options.memory;
        while budget.count() >= self.options.loaded_max {
            let idle = self.take_idle(|slot| !slot.is_kept).ok_or(ModelError::Full { loaded: budget.count() })?;
            tracing::info!(model = %idle.name, "unloaded: {name} is needed, and no more than --models-max are loaded");
        }
        let share = loop {
            let shortage = match budget.reserve(name, memory) {
                Ok(share) => break share,
                Err(shortage) => shortage,
            };
            // Unloading what is idle makes no room for a model that needs more than there is at all.
            let idle = if memory.min_bytes() > budget.for_models() {
                None
            } else {
                self.take_idle(|slot| !slot.is_kept).or_else(|| self.take_idle(|_| true))
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
        // What the model will need is free before it is loaded.
        self.apply_shares(self.all_loaded().iter().map(|model| &**model));
        Ok(share)
    }

    /// Takes the model out of its place that was used least recently, of those that nobody uses and that `may_go`.
    fn take_idle(&self, may_go: impl Fn(&Slot) -> bool) -> Option<Arc<ServedModel>> {
        let mut slots = self.slots();
        let idle = slots.iter().filter_map(|(name, slot)| {
            let model = slot.model.get().filter(|_| slot.users.is_idle())?;
            may_go(slot).then(|| (model.used.load(Ordering::Relaxed), name.clone()))
        });
        let (_, name) = idle.min()?;
        let slot = if slots[&name].is_kept {
            let emptied = slots[&name].emptied();
            slots.insert(name, emptied)
        } else {
            slots.remove(&name)
        };
        slot?.model.get().cloned()
    }

    /// Tells engines what they may have for keys and values: those first that get less.
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
                Ok(false) => tracing::warn!(model = %model.name, "a running text holds more KV memory than its share"),
                // Whoever uses it next finds out, and loads it again.
                Err(error) => tracing::warn!(model = %model.name, "{error}"),
            }
            model.share.has_kv(bytes);
        }
    }

    /// Unloads what nobody has used for too long, and gives what is free to those who can use it. To be called now and then.
    pub fn upkeep(&self) {
        if let Some(keep_alive) = self.options.keep_alive {
            let is_over = |slot: &Slot| {
                let used_at =
                    slot.model.get().map(|model| *model.used_at.lock().unwrap_or_else(PoisonError::into_inner));
                !slot.is_kept && used_at.is_some_and(|at| at.elapsed() > keep_alive)
            };
            while let Some(idle) = self.take_idle(is_over) {
                tracing::info!(model = %idle.name, "unloaded: nobody has used it for --keep-alive");
            }
        }
        self.share_out();
        // What requests have left behind.
        trim_allocator();
    }

    /// Lets go of a model; waits for its end if nobody uses it.
    pub(super) async fn let_go(self: &Arc<Self>, slot: Option<Arc<Slot>>) {
        if let Some(model) = slot.as_ref().and_then(|slot| slot.model.get()) {
            model.share.leave();
        }
        let models = Arc::clone(self);
        // What it has cached is saved at its end.
        let ended = tokio::task::spawn_blocking(move || {
            drop(slot);
            models.share_out();
        });
        if ended.await.is_err() {
            tracing::error!("unloading a model failed");
        }
    }

    /// Who has the memory, for operators.
    pub fn memory(&self) -> MemoryReport {
        self.options.memory.report()
    }
}
