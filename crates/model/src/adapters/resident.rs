//! The adapters that batches may name at the moment. Filled by whoever manages their memory, read by the runner.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use ruvllm_kernels::ops::Adapter;
use ruvllm_runner::AdapterId;

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
