//! Why a model cannot be loaded.

use ruvllm_kernels::ops::LinearError;
use ruvllm_kernels::{PackError, QuantizeError};

use crate::architectures::architecture_names;
use crate::formats::gguf::MetadataError;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("architecture '{0}' is not supported; known: {list}", list = architecture_names().join(", "))]
    Architecture(String),
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("metadata '{key}' is {got}, which {problem}")]
    Value { key: String, got: String, problem: &'static str },
    #[error("tensor '{0}' is missing")]
    MissingTensor(String),
    #[error("tensor '{tensor}' has the shape {got:?} where {expected:?} is needed")]
    Shape { tensor: String, expected: Vec<usize>, got: Vec<usize> },
    #[error("tensor '{0}' is not part of the architecture, so the answers would be wrong without it")]
    UnknownTensor(String),
    #[error("tensor '{tensor}' has {got} at {index}, which is no number to compute with")]
    NotFinite { tensor: String, index: usize, got: f32 },
    #[error("tensor '{tensor}': {source}")]
    Pack { tensor: String, source: PackError },
    #[error("tensor '{tensor}' cannot be quantized: {source}")]
    Quantize { tensor: String, source: QuantizeError },
    #[error("layer {layer}: {source}")]
    Linear { layer: usize, source: LinearError },
    #[error("a context of {asked} tokens is asked for; the model was made for {model} at most")]
    Context { asked: usize, model: usize },
}
