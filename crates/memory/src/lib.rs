//! RuvLLM's memory: policies, sessions, the witness log and what is kept to learn from, in one encrypted store that can be searched by meaning.
//!
//! An entry has columns, a body, and vectors; vectors have facets, by which a search is filtered while it runs. The store is
//! a file ([`Place::Folder`]) or a server database that several machines share. The crate knows nothing about models: vectors
//! and texts come from its callers.

mod clock;
mod database;
mod embedded;
mod embeddings;
mod error;
mod facets;
mod graph;
mod key;
mod learning;
mod memory;
mod names;
mod policies;
mod postgres;
mod recorder;
mod schema;
mod sessions;
mod users;
pub mod vector;
mod witness;
mod words;
mod workers;
mod write_buffer;

pub use embedded::Durability;
pub use embeddings::{DimensionStats, Embeddings};
pub use error::{MemoryError, Result};
pub use facets::Kind;
pub use graph::{Edge, EdgeKind};
pub use key::{Key, KeySource};
pub use learning::{
    ChoiceChanges, ChoiceOutcome, Example, ExampleQuery, FeedbackCounts, Forget, Forgotten, KeptFor, KnownRequest,
    LearnedScope, LearnedVersion, LearningChanges, LearningStatus, LearningStore, NewVersion, ROUTER_MODEL, ScopeState,
    ServedRouter, ServedVersion, TRAJECTORY_BYTES_MAX, TenantLearning, Trajectory, TrajectoryPrompt, VersionState,
};
pub use memory::{Item, Memory, MemoryOptions, MemoryStatus, Place, Recalled, now_ms, restore_backup};
pub use policies::{Policies, Policy, PolicyQuery, PolicySource, PolicyStore, defaults as default_policies};
pub use recorder::{Embed, Recorder, RecorderStats, Trace};
pub use sessions::{
    CONVERSATION_BYTES_MAX, KvState, Session, SessionQuery, SessionStore, SessionSummary, Turn, check_conversation,
    check_name as check_session_name,
};
pub use users::check_user;
pub use witness::{
    Annotation, Bucket, CORRECTION_BYTES_MAX, CacheUse, ChainError, ErrorFilter, ExportFormat, Exported, Failure,
    Feedback, Forgetting, ForgottenEntry, Found, Latency, LearningChange, LogEntry, ModelChoice, ModelStats,
    Percentiles, Quality, REASON_BYTES_MAX, RecallUse, Removed, Retention, Routing, Said, Texts, TokenCounts, Verified,
    WitnessEntry, WitnessLog, WitnessQuery, WitnessRecord, WitnessStats,
};
pub use words::{Range, parse_bytes, parse_span};
pub use workers::{SeenWorker, Worker, WorkerModel, WorkerStore};
