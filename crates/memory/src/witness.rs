//! The witness log: one entry for each request, in a hash chain, searchable by time, figures and meaning.

mod append;
mod chain;
mod entry;
mod export;
mod log;
mod parquet;
mod query;
mod retention;
mod stats;

pub use chain::{ChainError, Verified};
pub use entry::{CacheUse, Failure, Latency, Quality, Routing, Texts, TokenCounts, WitnessEntry, WitnessRecord};
pub use export::{ExportFormat, Exported};
pub use log::WitnessLog;
pub use query::{ErrorFilter, Found, WitnessQuery};
pub use retention::{Removed, Retention};
pub use stats::{Bucket, ModelStats, Percentiles, WitnessStats};

pub(crate) use append::{Prepared, append};
pub(crate) use chain::verify;
pub(crate) use export::export;
pub(crate) use query::{by_id, by_request, search};
pub(crate) use retention::{ENTRY_BYTES, expire, make_room, room_needed};
pub(crate) use stats::stats;
