//! Token ids in, token ids out: requests, batches, steps, sampling. Synchronous and deterministic: the same requests
//! in the same order give the same tokens; there is no clock and no randomness but the seeds of requests. (A caller may
//! tell how long steps take; that decides how many rows the next ones have, and with one KV format never which tokens come.)

mod constraint;
mod core;
mod event;
mod hidden_states;
mod penalties;
mod random;
mod recall;
mod request;
mod sampler;
mod sampling;
mod schedule;
mod sequence;
mod speculation;
mod tenants;

pub use constraint::{Constraint, ConstraintError};
pub use core::{Core, CoreOptions, EvaluateError, Observed, PrefixEvent, TextToObserve};
pub use event::{Event, HiddenStates, PrefixReport, StepError};
pub use recall::{RECALL_SHARE_MAX, Recall, RecallItem, RecallSpace};
pub use request::{FinishReason, PrefixUse, Request, SequenceId, SubmitError, Tenant};
pub use ruvllm_kv::{
    CacheStats, DiskStats, DiskStore, Divergence, KvOptions, LookupStats, PageHash, PageKey, Quota, Tiers, TiersError,
};
pub use ruvllm_runner::{
    AdapterId, HeldAdapter, PAGE_TOKENS, PageFormat, Rotation, RunnerError, RunnerLimits, TokenId,
};
pub use sampler::{Sampled, TokenLogprob};
pub use sampling::{Sampling, SamplingError};
pub use speculation::{Counts, DraftOptions, Speculation};
