//! The witness log: one entry for each request and for what was said of one later, in a hash chain, searchable by time, figures
//! and meaning.

mod annotation;
mod append;
mod chain;
mod entry;
mod export;
mod log;
mod parquet;
mod query;
mod retention;
mod stats;
mod verify;

pub use annotation::{
    Annotation, CORRECTION_BYTES_MAX, Feedback, Forgetting, ForgottenEntry, LearningChange, LogEntry, REASON_BYTES_MAX,
    Said,
};
pub use entry::{
    CacheUse, Failure, Latency, ModelChoice, Quality, RecallUse, Routing, Texts, TokenCounts, WitnessEntry,
    WitnessRecord,
};
pub use export::{ExportFormat, Exported};
pub use log::WitnessLog;
pub use query::{ErrorFilter, Found, WitnessQuery};
pub use retention::{Removed, Retention};
pub use stats::{Bucket, ModelStats, Percentiles, WitnessStats};
pub use verify::{ChainError, Verified};

pub(crate) use annotation::{FEEDBACK, FORGETTING, FORGOTTEN};
pub(crate) use append::{Prepared, PreparedRequest, append};
pub(crate) use export::export;
pub(crate) use query::{annotations, by_id, by_request, search};
pub(crate) use retention::{ENTRY_BYTES, expire, make_room, room_needed};
pub(crate) use stats::stats;
pub(crate) use verify::verify;
