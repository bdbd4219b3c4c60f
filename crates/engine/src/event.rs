//! What a step returns to its caller.

use std::time::Duration;

use ruvllm_kv::Divergence;
use ruvllm_runner::RunnerError;

use crate::{ConstraintError, Counts, FinishReason, Sampled, SequenceId};

/// A token of a sequence. A step may give a sequence several, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub sequence: SequenceId,
    pub sampled: Sampled,
    pub finish: Option<FinishReason>,
    /// With this token.
    pub counts: Counts,
    /// With the first token: what of the prompt was cached.
    pub prefix: Option<Box<PrefixReport>>,
    /// For requests that want them.
    pub states: Option<Box<HiddenStates>>,
}

/// What the model made of the tokens, behind its last layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HiddenStates {
    /// With the first token: the mean over the tokens of the prompt that were asked about, as far as it is known.
    pub prompt: Option<Vec<f32>>,
    /// The state that this token was chosen from: that of the token before it.
    pub last: Vec<f32>,
}

/// What a sequence did not have to compute of its prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixReport {
    pub cached_tokens: usize,
    /// Those of them that were loaded from disk.
    pub loaded_tokens: usize,
    /// How long it waited in the queue, by the time given to `Core::set_time`.
    pub waited: Duration,
    /// Where the prompt left a cached text, if that goes on otherwise: why not more of it was cached.
    pub divergence: Option<Divergence>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StepError {
    #[error("the model's output for this text is not a number or infinite; its weights are damaged or overflow")]
    NotANumber { sequence: SequenceId },
    #[error("the request's deadline has passed")]
    DeadlinePassed { sequence: SequenceId },
    #[error("the KV memory has no room for another page of this sequence; raise the KV budget")]
    OutOfMemory { sequence: SequenceId },
    #[error("{error}")]
    Runner { sequence: SequenceId, error: RunnerError },
    #[error("the answer cannot be kept to its grammar: {error}")]
    Constraint { sequence: SequenceId, error: ConstraintError },
}

impl StepError {
    /// The sequence that has ended with it.
    pub fn sequence(&self) -> SequenceId {
        match self {
            Self::NotANumber { sequence }
            | Self::DeadlinePassed { sequence }
            | Self::OutOfMemory { sequence }
            | Self::Runner { sequence, .. }
            | Self::Constraint { sequence, .. } => *sequence,
        }
    }
}
