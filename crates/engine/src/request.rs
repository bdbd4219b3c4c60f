//! What a caller asks of the engine, and why it may be refused.

use crate::{Sampling, SamplingError, Speculation};

/// Names a sequence from its submission to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(crate) u64);

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    /// Tokens to generate at most; `None` is whatever the context holds.
    pub max_tokens: Option<usize>,
    /// Tokens that end the text, such as the model's end of turn.
    pub end_tokens: Vec<u32>,
    pub speculation: Speculation,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token was chosen.
    Stop,
    /// `max_tokens` were generated, or the context is full.
    Length,
}

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SubmitError {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("token {token} of the prompt is not in the vocabulary of {vocabulary}")]
    NoSuchToken { token: u32, vocabulary: usize },
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}, one of which must be left for the answer; \
         shorten the prompt or raise the context"
    )]
    PromptTooLong { prompt: usize, context: usize },
    #[error("max_tokens is 0; it must be at least 1")]
    NothingToGenerate,
    #[error(
        "the prompt has {prompt} tokens and max_tokens is {max_tokens}, together more than the context of {context}; \
         lower max_tokens or raise the context"
    )]
    TooLong { prompt: usize, max_tokens: usize, context: usize },
    #[error("{needed} KV pages are needed and there are {pages}; shorten the request or raise the KV budget")]
    TooLargeForCache { needed: usize, pages: usize },
    #[error("{0} requests are waiting already")]
    QueueFull(usize),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}
