//! What is kept to learn from, of tenants that opted in: trajectories, each with the feedback that counts for it; and
//! the versions that were learned from them.
//!
//! The witness log has its own, shorter retention, so feedback is in both: as a chained entry of the log, and with the
//! trajectory that it is about.

mod changes;
mod choices;
mod examples;
mod forget;
mod known;
mod retention;
mod status;
mod store;
mod trajectory;
mod versions;

pub use changes::LearningChanges;
pub use choices::{ChoiceChanges, ChoiceOutcome};
pub use examples::{Example, ExampleQuery};
pub use forget::{Forget, Forgotten};
pub use known::KnownRequest;
pub use status::{FeedbackCounts, KeptFor, LearningStatus, TenantLearning};
pub use store::LearningStore;
pub use trajectory::{TRAJECTORY_BYTES_MAX, Trajectory, TrajectoryPrompt};
pub use versions::{
    LearnedScope, LearnedVersion, NewVersion, ROUTER_MODEL, ScopeState, ServedRouter, ServedVersion, VersionState,
};

pub(crate) use retention::{expire, keep_size};
pub(crate) use trajectory::{put, rate};
