//! The adapters of an engine: registered (known, on disk), and hot (in memory, ready to multiply).

use std::path::PathBuf;
use std::sync::Arc;

use ruvllm_engine::{AdapterId, HeldAdapter, TokenId};
use ruvllm_model::adapters::AdapterError;

/// The adapters of one engine. Clones share them. Everything is cheap except [`Adapters::register`] and [`Adapters::hold`], which
/// may read a file.
#[derive(Clone, Debug)]
pub struct Adapters {
    backend: &'static str,
}

/// What is known of an adapter that was registered.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisteredAdapter {
    pub id: AdapterId,
    pub source: PathBuf,
    /// Memory that it takes while it is hot.
    pub bytes: usize,
    /// Whether keys and values differ from the model's own, so that prefixes are cached apart.
    pub changes_kv: bool,
    /// Tokens that switch it on, of an activated adapter.
    pub invocation: Option<Arc<[TokenId]>>,
    /// The smallest and the largest rank of its matrices.
    pub ranks: (usize, usize),
}

/// Figures of an engine's adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterStats {
    pub registered: usize,
    /// Adapters in memory, and the bytes that they take.
    pub hot: usize,
    pub hot_bytes: usize,
    pub budget_bytes: usize,
    /// How often one was loaded, dropped from memory, or found there.
    pub loads: u64,
    pub evictions: u64,
    pub hits: u64,
}

impl Adapters {
    pub(crate) fn new(backend: &'static str) -> Self {
        Self { backend }
    }

    /// Checks an adapter against the model and makes it known. Reads and hashes the file; its weights stay on disk. One with the same
    /// contents is the same adapter, wherever it is.
    pub fn register(&self, _source: PathBuf) -> Result<RegisteredAdapter, AdapterError> {
        Err(AdapterError::Backend(self.backend))
    }

    /// Returns what is known of a registered adapter.
    pub fn get(&self, _id: AdapterId) -> Option<RegisteredAdapter> {
        None
    }

    /// Forgets an adapter. Requests that hold it go on with it.
    pub fn unregister(&self, _id: AdapterId) {}

    /// Returns adapters for a request, with weights, ready to multiply: several are added up and count as one. Loads what is not in
    /// memory, on this thread. They stay in memory while the result or a clone of it lives.
    pub fn hold(&self, adapters: &[(AdapterId, f32)]) -> Result<HeldAdapter, AdapterError> {
        adapters
            .first()
            .map_or(Err(AdapterError::Count { count: 0, max: 8 }), |(id, _)| Err(AdapterError::NotRegistered(*id)))
    }

    /// Changes the memory for hot adapters; those that no request holds are dropped first.
    pub fn set_budget(&self, _bytes: usize) {}

    pub fn stats(&self) -> AdapterStats {
        AdapterStats::default()
    }
}
