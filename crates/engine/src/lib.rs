//! Token ids in, token ids out: requests, batches, steps, sampling. Synchronous and deterministic: the same requests
//! in the same order give the same tokens; there is no clock and no randomness but the seeds of requests.

mod core;
mod penalties;
mod random;
mod request;
mod sampler;
mod sampling;
mod schedule;

pub use core::{Core, CoreOptions, Event, StepError};
pub use request::{FinishReason, Request, SequenceId, SubmitError};
pub use sampler::{Sampled, TokenLogprob};
pub use sampling::{Sampling, SamplingError};
