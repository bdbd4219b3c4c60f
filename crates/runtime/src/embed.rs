//! Embeddings: texts as vectors.
//!
//! [`Embedder`] is implemented by models made for it (`ruvllm-backends`) and by the generating engine, whose hidden states
//! serve as embeddings. `tests/engine/embedder.rs` holds the contract that all of them keep.

mod dimension_stats;
mod hidden_states;
mod memory;

use std::fmt::Debug;

use ruvllm_engine::TokenId;

pub(crate) use dimension_stats::{TEXTS as SAMPLE_TEXTS, standardised};
pub use hidden_states::TextEmbeddings;
pub(crate) use hidden_states::{StateSum, unit};
pub(crate) use memory::{MemoryEmbeddings, fitted};
pub use memory::{NamedEmbedder, RecallError, hidden_model, hidden_state_of, vector_of};

use crate::CancellationToken;

/// A loaded model that turns texts into vectors.
pub trait Embedder: Debug + Send + Sync {
    /// Returns the name of the implementation, such as `candle`.
    fn name(&self) -> &'static str;

    /// Returns the length of a vector.
    fn dimensions(&self) -> usize;

    /// Returns the maximum number of tokens of a text, including those that the model puts around it.
    fn context(&self) -> usize;

    /// Returns a vector of length 1 for each text, in the order of the texts and independent of the other texts. Texts of
    /// similar meaning have vectors of similar direction. Blocks until all are computed.
    fn embed(&self, request: &EmbedRequest) -> Result<Embeddings, EmbedError>;
}

/// Texts to embed.
#[derive(Clone, Debug, Default)]
pub struct EmbedRequest {
    pub inputs: Vec<EmbedInput>,
    pub too_long: TooLong,
    pub cancellation: CancellationToken,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedInput {
    Text(String),
    /// Token ids, to which nothing is added.
    Tokens(Vec<TokenId>),
}

/// What happens to a text that is longer than the model's context. Nothing is ever left out unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooLong {
    /// Refuses the request.
    #[default]
    Refuse,
    /// Leaves out the end of the text and reports the number of tokens.
    CutEnd,
}

/// Vectors of a request's texts, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    pub vectors: Vec<Vec<f32>>,
    /// Number of tokens computed for each text.
    pub tokens: Vec<usize>,
    /// Number of tokens left out of all texts together.
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
    NoSuchToken { index: usize, token: TokenId, vocabulary: usize },
    /// The request was cancelled after this many tokens were computed.
    #[error("nobody waits for the result any more")]
    Abandoned { tokens: usize },
    #[error("the model failed: {why}")]
    Failed { why: String },
}

impl EmbedError {
    /// Returns the index of the text at fault, if one is.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::Empty { index } | Self::TooLong { index, .. } | Self::NoSuchToken { index, .. } => Some(*index),
            Self::Abandoned { .. } | Self::Failed { .. } => None,
        }
    }
}
