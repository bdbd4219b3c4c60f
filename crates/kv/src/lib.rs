//! KV memory: pages of several formats, the prefixes that are cached in them, and the disk behind. Knows nothing of models
//! or text.

mod accounts;
mod cache;
#[doc(hidden)]
pub mod checked;
mod disk;
mod events;
mod page_map;
mod pages;
mod prefix;
mod sidecar;
mod slabs;
mod states;
mod stats;
mod tiers;

pub use accounts::{AccountId, Quota};
pub use cache::{KvCache, KvOptions, OutOfPages, PageTable, PrefixMatch};
pub use disk::{DiskStats, DiskStore, DiskTier, PageKey};
pub use events::CacheEvent;
pub use page_map::{ConvertError, PageMap};
pub use prefix::{Change, Divergence, Found, Namespace, PageHash, PrefixTree, TakenPage, TextNamespaces};
pub use stats::{CacheStats, LookupStats};
pub use tiers::{Tiers, TiersError};
