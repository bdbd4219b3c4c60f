//! The seam between the engine and whatever executes a model: KV pages (their formats and layout, not who owns them),
//! batches of rows, and the traits that a device implements. Knows neither CPUs nor models.

mod adapter;
mod batch;
mod candidates;
mod choice;
mod fake;
mod format;
mod layout;
mod page;
mod pass_times;
mod runner;
mod state;
mod token;

pub use adapter::{AdapterId, HeldAdapter, RowsAdapter};
pub use batch::{Batch, BatchError, CheckedBatch, SequenceRows};
pub use candidates::{Candidate, CandidateScan, NotFinite, keep_likeliest};
pub use choice::TokenChoice;
pub use fake::{FakeRunner, Fault, FaultInjector};
pub use format::{KeyFormat, PageFormat, PageLayers, ValueFormat};
pub use layout::{CHUNK_TOKENS, KEY_GROUP, KvHeads, KvShape, PageLayout, VALUE_GROUP, ZERO_POINTS_BYTES};
pub use page::{HUGE_PAGE, PAGE_TOKENS, PageId, PageLocation, Rotation};
pub use pass_times::PassTimes;
pub use runner::{Conversion, PageBytes, Runner, RunnerError, RunnerLimits};
pub use state::{RowsState, StateSlot};
pub use token::TokenId;
