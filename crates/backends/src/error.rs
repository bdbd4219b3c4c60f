//! Why a model could not be loaded.

use std::io;
use std::path::PathBuf;

use ruvllm_text::TokenizerError;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than {bytes_max} bytes, which no real one is", .path.display())]
    TooLarge { path: PathBuf, bytes_max: u64 },
    #[error("{} is not what it should be: {why}", .path.display())]
    Json { path: PathBuf, why: String },
    #[error("config.json: {field} is {got}; {wanted}")]
    Field { field: &'static str, got: String, wanted: String },
    #[error("this model scores documents by a query and does not embed texts; it is for reranking")]
    NotForEmbedding,
    #[error("this model embeds texts and does not score documents by a query; reranking needs a cross-encoder")]
    NotForReranking,
    #[error("tokenizer.json puts nothing between the texts of a pair, or segments that the model does not have")]
    NoPairs,
    #[error("{}: {source}", .path.display())]
    Tokenizer { path: PathBuf, source: TokenizerError },
    #[error(
        "tokenizer.json has {tokens} tokens and config.json a vocab_size of {vocabulary}; they do not belong together"
    )]
    TokenizerTooLarge { tokens: usize, vocabulary: usize },
    #[error("{} is no safetensors file: {why}", .path.display())]
    Weights { path: PathBuf, why: String },
    #[error("the weights hold no tensor {name}")]
    NoTensor { name: String },
    #[error("tensor {name} has the shape {got:?}; by config.json it should be {expected:?}")]
    Shape { name: String, expected: Vec<usize>, got: Vec<usize> },
    #[error("tensor {name} is of type {got}; F32, F16 and BF16 are supported")]
    NumberType { name: String, got: String },
    #[error("the weights hold a tensor {name} that config.json leaves no place for")]
    LeftOver { name: String },
    #[error("the weights cannot be used: {0}")]
    Candle(#[from] candle_core::Error),
}
