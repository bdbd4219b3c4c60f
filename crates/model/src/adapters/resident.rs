//! The adapters that batches may name at the moment. Filled by whoever manages their memory, read by the runner.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use ruvllm_kernels::ops::Adapter;
use ruvllm_runner::AdapterId;

/// Memory of a runner for batches with adapters, beside that of the adapters themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterBuffers {
    /// Inputs before they are quantized, which are kept for adapters.
    pub input_bytes: usize,
    /// Products with the first matrices, for each rank of the adapter that has most.
    pub rank_bytes: usize,
}

/// Adapters in memory, by their contents.
#[derive(Debug, Default)]
pub struct ResidentAdapters(RwLock<HashMap<AdapterId, Arc<Adapter>>>);

impl ResidentAdapters {
    pub fn get(&self, id: AdapterId) -> Option<Arc<Adapter>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub fn insert(&self, id: AdapterId, adapter: Arc<Adapter>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(id, adapter);
    }

    pub fn remove(&self, id: AdapterId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}
