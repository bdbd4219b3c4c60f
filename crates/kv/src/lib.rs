//! KV memory: a pool of pages and the page tables of sequences. Knows nothing of models or text.

mod cache;

pub use cache::{KvCache, OutOfPages, PageTable};
