//! What a step tells its caller.

use crate::{Counts, FinishReason, Sampled, SequenceId};

/// A token of a sequence. A step may give a sequence several, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub sequence: SequenceId,
    pub sampled: Sampled,
    pub finish: Option<FinishReason>,
    /// With this token.
    pub counts: Counts,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StepError {
    #[error("the model's output for this text is not a number or infinite; its weights are damaged or overflow")]
    NotANumber { sequence: SequenceId },
}
