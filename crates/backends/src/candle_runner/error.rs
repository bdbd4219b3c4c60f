//! Why candle cannot run a model.

use ruvllm_kernels::WeightType;
use ruvllm_model::formats::gguf::MetadataError;

#[derive(Debug, thiserror::Error)]
pub enum CandleError {
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("architecture '{0}' is not known to candle")]
    Architecture(String),
    #[error("metadata '{key}' is {got}; {wanted}")]
    Value { key: String, got: String, wanted: &'static str },
    #[error("tensor '{0}' is missing")]
    MissingTensor(String),
    #[error("tensor '{name}' has the shape {got:?} where {expected:?} is needed")]
    Shape { name: String, expected: Vec<usize>, got: Vec<usize> },
    #[error(
        "tensor '{0}' has no place in candle's code for this architecture, so the answers would be wrong without it"
    )]
    UnknownTensor(String),
    #[error("tensor '{name}' is of type {got}, which candle does not know; use a file of another quantization")]
    WeightType { name: String, got: WeightType },
    #[error(
        "tensor '{name}' is of type {got} and those that candle joins with it are of type {first}; use a file with one type \
         for both, such as Q8_0 or Q4_0"
    )]
    MixedTypes { name: String, first: WeightType, got: WeightType },
    #[error("a context of {asked} tokens is asked for; with candle the model has {most} at most")]
    Context { asked: usize, most: usize },
    #[error("candle cannot load it: {0}")]
    Candle(#[from] candle_core::Error),
}
