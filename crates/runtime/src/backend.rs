//! What runs a model, seen from outside: the native engine is one backend, a model that only embeds texts another.
//!
//! The trait holds what all of them can do. Generating is the engine's own.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A loaded model that turns texts into vectors.
pub trait Backend: Debug + Send + Sync {
    /// Of the implementation, such as `candle`.
    fn name(&self) -> &'static str;

    /// Numbers in a vector.
    fn dimensions(&self) -> usize;

    /// Tokens of a text at most, those included that the model puts around it.
    fn context(&self) -> usize;

    /// A vector of length 1 for each text. Texts that mean similar things have vectors that point in similar directions.
    /// Blocks until all are computed.
    fn embed(&self, request: &EmbedRequest) -> Result<Embeddings, EmbedError>;
}

/// Texts that vectors are wanted for.
#[derive(Clone, Debug, Default)]
pub struct EmbedRequest {
    pub inputs: Vec<EmbedInput>,
    pub too_long: TooLong,
    pub patience: Patience,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedInput {
    Text(String),
    /// Taken as they are: nothing is put around them.
    Tokens(Vec<u32>),
}

/// What happens to a text that is longer than the model can take. Nothing is ever left out unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooLong {
    /// The request is refused.
    #[default]
    Refuse,
    /// The end of the text is left out, and the result tells how many tokens that were.
    CutEnd,
}

/// Whether anybody still waits for a result. Clones speak of the same one.
#[derive(Clone, Debug, Default)]
pub struct Patience {
    is_over: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Patience {
    /// Of one who sets `is_over` when nobody waits any more.
    pub fn until(is_over: Arc<AtomicBool>) -> Self {
        Self { is_over, deadline: None }
    }

    /// Of one who waits this long at most.
    pub fn of(limit: Duration) -> Self {
        Self { deadline: Instant::now().checked_add(limit), ..Self::default() }
    }

    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// The vectors of a request's texts, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    pub vectors: Vec<Vec<f32>>,
    /// Tokens that were computed for each text.
    pub tokens: Vec<usize>,
    /// Tokens that were left out of all texts together.
    pub cut_tokens: usize,
}

/// Why texts could not be embedded. `index` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    #[error("text {index} is empty")]
    Empty { index: usize },
    #[error("text {index} has {tokens} tokens; the model takes at most {tokens_max}")]
    TooLong { index: usize, tokens: usize, tokens_max: usize },
    #[error("text {index} has the token {token}, which is not in the vocabulary of {vocabulary}")]
    NoSuchToken { index: usize, token: u32, vocabulary: usize },
    /// Nobody waits for the result any more. So many tokens were computed until that was noticed.
    #[error("nobody waits for the result any more")]
    Abandoned { tokens: usize },
    #[error("the model failed: {why}")]
    Failed { why: String },
}

impl EmbedError {
    /// Which text is at fault, if one is.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::Empty { index } | Self::TooLong { index, .. } | Self::NoSuchToken { index, .. } => Some(*index),
            Self::Abandoned { .. } | Self::Failed { .. } => None,
        }
    }
}
