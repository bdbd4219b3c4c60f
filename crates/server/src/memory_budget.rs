//! One memory budget for the process: fixed parts for what does not depend on models, a share for each model, and the
//! rest for the KV caches of all models.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm_runtime::{ModelMemory, hardware};
use serde::Serialize;
use utoipa::ToSchema;

/// What a process needs at the start: code, threads, slack of the allocator, the memory's database.
const PROCESS_BYTES: usize = 96 << 20;

/// The memory of the process, and how it is divided.
#[derive(Debug)]
pub struct MemoryBudget {
    total_bytes: usize,
    parts: Vec<Part>,
    /// Memory for adapters of all models, which is taken once there are some.
    adapter_bytes: usize,
    models: Mutex<Vec<Entry>>,
    next_id: AtomicU64,
}

/// Maximum memory of something that does not depend on models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Part {
    /// Its purpose.
    pub part: &'static str,
    pub max_bytes: usize,
}

/// A model that is loaded or being loaded.
#[derive(Debug)]
struct Entry {
    id: u64,
    name: String,
    memory: ModelMemory,
    /// KV memory that its engine was last given, if any.
    kv_bytes: Option<usize>,
    /// It only finishes running requests: its engine gets no new budget.
    is_leaving: bool,
    /// Whether it has adapters, so that memory for adapters is taken.
    has_adapters: bool,
    /// Buffers of batches with adapters, which stay until the model is unloaded.
    adapter_buffer_bytes: usize,
}

/// A model's share of the budget, released on drop.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<MemoryBudget>,
    pub(crate) id: u64,
}

/// Not enough memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub needed_bytes: usize,
    pub free_bytes: usize,
}

/// How the memory is divided, for operators.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MemoryReport {
    /// Maximum memory of the process; `null` if neither known nor set.
    pub budget_bytes: Option<usize>,
    /// Memory in use, if the system reports it.
    pub resident_bytes: Option<usize>,
    /// Maximum of what does not depend on models.
    pub parts: Vec<Part>,
    pub models: Vec<ModelShare>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelShare {
    pub model: String,
    pub weights_bytes: usize,
    /// Weights of experts that are kept on disk, of which the system keeps in memory what is used.
    pub experts_on_disk_bytes: usize,
    /// Maximum of buffers, tokenizer, grammars and waiting requests.
    pub working_bytes: usize,
    /// Buffers of batches with adapters; 0 until it has had one.
    pub adapter_buffer_bytes: usize,
    /// Maximum of the KV cache.
    pub kv_bytes: usize,
}

impl MemoryBudget {
    /// `total_bytes` in all; unlimited without. `adapter_bytes` are taken from KV caches once a model has adapters.
    pub fn new(total_bytes: Option<usize>, parts: &[(&'static str, usize)], adapter_bytes: usize) -> Self {
        let parts = [("process", PROCESS_BYTES)].iter().chain(parts);
        Self {
            total_bytes: total_bytes.unwrap_or(usize::MAX),
            parts: parts.map(|(part, max_bytes)| Part { part, max_bytes: *max_bytes }).collect(),
            adapter_bytes,
            models: Mutex::default(),
            next_id: AtomicU64::new(0),
        }
    }

    /// Returns the memory that is left for models when none is loaded.
    pub fn for_models(&self) -> usize {
        self.total_bytes.saturating_sub(self.parts.iter().map(|part| part.max_bytes).sum())
    }

    /// Reserves a share for a model, if it fits beside all others at their minimum.
    pub(crate) fn reserve(self: &Arc<Self>, name: &str, memory: ModelMemory) -> Result<Share, Shortage> {
        let mut models = self.models();
        let (needed_bytes, free_bytes) = (memory.min_bytes(), self.free_bytes(&models));
        if needed_bytes > free_bytes {
            return Err(Shortage { needed_bytes, free_bytes });
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        models.push(Entry::new(id, name, memory));
        Ok(Share { budget: Arc::clone(self), id })
    }

    /// Counts models that are loaded or being loaded, except those that only finish running requests.
    pub(crate) fn count(&self) -> usize {
        self.models().iter().filter(|entry| !entry.is_leaving).count()
    }

    /// Returns the KV memory of each model: its minimum, and an equal share of the rest as far as it can use it.
    pub(crate) fn kv_shares(&self) -> Vec<(u64, usize)> {
        let models = self.models();
        let mut left = self.free_bytes(&models);
        let mut wanting: Vec<&Entry> = models.iter().filter(|entry| !entry.is_leaving).collect();
        // Models that want least come first: what they leave is for the others.
        wanting.sort_by_key(|entry| entry.memory.kv_max_bytes - entry.memory.kv_min_bytes);
        let mut shares = Vec::new();
        for (index, entry) in wanting.iter().enumerate() {
            let ModelMemory { kv_min_bytes, kv_max_bytes, .. } = entry.memory;
            let more = (kv_max_bytes - kv_min_bytes).min(left / (wanting.len() - index));
            left -= more;
            shares.push((entry.id, kv_min_bytes + more));
        }
        shares
    }

    pub fn report(&self) -> MemoryReport {
        let share = |entry: &Entry| ModelShare {
            model: entry.name.clone(),
            weights_bytes: entry.memory.weights_bytes,
            experts_on_disk_bytes: entry.memory.disk_bytes,
            working_bytes: entry.memory.working_bytes,
            adapter_buffer_bytes: entry.adapter_buffer_bytes,
            kv_bytes: entry.kv_bytes.unwrap_or(entry.memory.kv_min_bytes),
        };
        let models = self.models();
        let adapters = Part { part: "adapters", max_bytes: self.taken_by_adapters(&models) };
        MemoryReport {
            budget_bytes: (self.total_bytes < usize::MAX).then_some(self.total_bytes),
            resident_bytes: hardware::resident_bytes(),
            parts: self.parts.iter().cloned().chain([adapters]).collect(),
            models: models.iter().map(share).collect(),
        }
    }

    /// Returns what is left beside all models at their minimum.
    fn free_bytes(&self, models: &[Entry]) -> usize {
        let taken = models.iter().map(Entry::min_bytes).fold(self.taken_by_adapters(models), usize::saturating_add);
        self.for_models().saturating_sub(taken)
    }

    fn taken_by_adapters(&self, models: &[Entry]) -> usize {
        if models.iter().any(|entry| entry.has_adapters) { self.adapter_bytes } else { 0 }
    }

    fn models(&self) -> MutexGuard<'_, Vec<Entry>> {
        // No operation under the lock can leave it inconsistent.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn new(id: u64, name: &str, memory: ModelMemory) -> Self {
        Self {
            id,
            name: name.to_owned(),
            memory,
            kv_bytes: None,
            is_leaving: false,
            has_adapters: false,
            adapter_buffer_bytes: 0,
        }
    }

    fn min_bytes(&self) -> usize {
        let leaving = self.kv_bytes.filter(|_| self.is_leaving);
        let kv = leaving.unwrap_or(self.memory.kv_min_bytes);
        self.memory.fixed_bytes().saturating_add(self.adapter_buffer_bytes).saturating_add(kv)
    }
}

impl Share {
    /// Sets the actual memory of the model, once it is loaded.
    pub(crate) fn settle(&self, memory: ModelMemory) {
        self.change(|entry| entry.memory = memory);
    }

    /// Records that its engine was given this KV memory.
    pub(crate) fn has_kv(&self, bytes: usize) {
        self.change(|entry| entry.kv_bytes = Some(bytes));
    }

    /// Returns the KV memory that its engine was last given, if any.
    pub(crate) fn kv_bytes(&self) -> Option<usize> {
        self.budget.models().iter().find(|entry| entry.id == self.id)?.kv_bytes
    }

    /// Takes memory for adapters and the buffers that they need in batches, if the model has none yet. Returns whether that
    /// leaves less for KV caches.
    pub(crate) fn take_adapters(&self, buffer_bytes: usize) -> Result<bool, Shortage> {
        let mut models = self.budget.models();
        let free_bytes = self.budget.free_bytes(&models);
        let taken_bytes = self.budget.taken_by_adapters(&models);
        let Some(entry) = models.iter_mut().find(|entry| entry.id == self.id) else { return Ok(false) };
        if entry.has_adapters {
            return Ok(false);
        }
        let buffers = buffer_bytes.saturating_sub(entry.adapter_buffer_bytes);
        let needed_bytes = buffers.saturating_add(self.budget.adapter_bytes - taken_bytes);
        if needed_bytes > free_bytes {
            return Err(Shortage { needed_bytes, free_bytes });
        }
        (entry.has_adapters, entry.adapter_buffer_bytes) = (true, buffer_bytes);
        Ok(needed_bytes > 0)
    }

    /// Gives the memory for adapters back, if no other model has any. Buffers stay with the model.
    pub(crate) fn give_back_adapters(&self) {
        self.change(|entry| entry.has_adapters = false);
    }

    /// Marks it as only finishing running requests.
    pub(crate) fn leave(&self) {
        self.change(|entry| entry.is_leaving = true);
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.budget.models().iter_mut().find(|entry| entry.id == self.id) {
            change(entry);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.models().retain(|entry| entry.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn budget(for_models: usize) -> Arc<MemoryBudget> {
        let total = PROCESS_BYTES + 10 * MIB + for_models;
        Arc::new(MemoryBudget::new(Some(total), &[("bodies", 10 * MIB)], 100 * MIB))
    }

    fn memory(weights: usize, kv_min: usize, kv_max: usize) -> ModelMemory {
        ModelMemory {
            weights_bytes: weights * MIB,
            kv_min_bytes: kv_min * MIB,
            kv_max_bytes: kv_max * MIB,
            ..ModelMemory::default()
        }
    }

    fn shares(budget: &MemoryBudget) -> Vec<usize> {
        let mut shares = budget.kv_shares();
        shares.sort_unstable();
        shares.into_iter().map(|(_, bytes)| bytes / MIB).collect()
    }

    #[test]
    fn what_is_left_goes_to_those_who_can_use_it_in_equal_parts() {
        let budget = budget(1000 * MIB);
        let _a = budget.reserve("a", memory(100, 50, 5000)).unwrap();
        assert_eq!(shares(&budget), [900]);
        let _b = budget.reserve("b", memory(100, 50, 100)).unwrap();
        assert_eq!(shares(&budget), [700, 100]);
        let _c = budget.reserve("c", memory(100, 50, 5000)).unwrap();
        assert_eq!(shares(&budget), [300, 100, 300]);
        assert_eq!(budget.count(), 3);
    }

    #[test]
    fn a_model_that_does_not_fit_beside_the_least_of_the_others_is_refused() {
        let budget = budget(400 * MIB);
        let a = budget.reserve("a", memory(100, 100, 5000)).unwrap();
        let shortage = budget.reserve("b", memory(150, 51, 60)).unwrap_err();
        assert_eq!(shortage, Shortage { needed_bytes: 201 * MIB, free_bytes: 200 * MIB });
        let b = budget.reserve("b", memory(150, 50, 60)).unwrap();
        assert_eq!(shares(&budget), [100, 50]);
        drop((a, b));
        assert_eq!((budget.count(), shares(&budget)), (0, vec![]));
    }

    #[test]
    fn who_only_finishes_what_it_has_begun_keeps_what_it_was_given() {
        let budget = budget(1000 * MIB);
        let a = budget.reserve("a", memory(100, 50, 5000)).unwrap();
        a.has_kv(800 * MIB);
        a.leave();
        assert_eq!(budget.reserve("b", memory(100, 50, 60)).unwrap_err().free_bytes, 100 * MIB);
        assert_eq!(shares(&budget), Vec::<usize>::new());
        drop(a);
        budget.reserve("b", memory(100, 50, 60)).unwrap();
    }

    #[test]
    fn adapters_take_memory_from_kv_caches_while_a_model_has_some() {
        let budget = budget(1000 * MIB);
        let a = budget.reserve("a", memory(100, 50, 5000)).unwrap();
        let b = budget.reserve("b", memory(100, 50, 60)).unwrap();
        assert_eq!(shares(&budget), [740, 60]);
        assert_eq!(a.take_adapters(20 * MIB), Ok(true));
        assert_eq!(shares(&budget), [620, 60], "100 for adapters, 20 for buffers");
        assert_eq!(a.take_adapters(20 * MIB), Ok(false), "once");
        assert_eq!(b.take_adapters(30 * MIB), Ok(true));
        assert_eq!(shares(&budget), [590, 60], "all models share what adapters have");
        assert_eq!(budget.report().parts.last().map(|part| (part.part, part.max_bytes)), Some(("adapters", 100 * MIB)));
        a.give_back_adapters();
        assert_eq!(shares(&budget), [590, 60]);
        b.give_back_adapters();
        assert_eq!(shares(&budget), [690, 60], "buffers stay");
        drop((a, b));
        let full = budget.reserve("full", memory(800, 50, 60)).unwrap();
        let shortage = full.take_adapters(60 * MIB).unwrap_err();
        assert_eq!(shortage, Shortage { needed_bytes: 160 * MIB, free_bytes: 150 * MIB });
        assert_eq!(shares(&budget), [60], "nothing was taken");
    }

    #[test]
    fn without_a_number_everybody_has_all_that_is_of_use() {
        let budget = Arc::new(MemoryBudget::new(None, &[], 0));
        let _a = budget.reserve("a", memory(100, 50, 5000)).unwrap();
        let _b = budget.reserve("b", memory(100, 50, 70)).unwrap();
        assert_eq!(shares(&budget), [5000, 70]);
        assert_eq!(budget.report().budget_bytes, None);
    }
}
