//! Why an adapter cannot be read or used.

use std::io;
use std::path::PathBuf;

use ruvllm_runner::AdapterId;
use thiserror::Error;

use crate::formats::gguf::GgufError;
use crate::formats::gguf::write::WriteError;
use crate::formats::safetensors::SafetensorsError;

/// Why an adapter cannot be read, or not be used with a model.
#[derive(Debug, Error)]
pub enum AdapterError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error("{}: {source}", path.display())]
    Gguf { path: PathBuf, source: GgufError },
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A setting of an adapter that would have to be honoured.
    #[error("{setting} is {got}, which is not supported: {remedy}")]
    Setting { setting: String, got: String, remedy: &'static str },
    #[error("tensor {name:?} {problem}")]
    Tensor { name: String, problem: String },
    #[error(
        "tensor {name:?} has the shape {got:?}, and the base model needs {expected:?}: the adapter is of another model"
    )]
    Shape { name: String, expected: Vec<usize>, got: Vec<usize> },
    #[error("the adapter is of a model with the architecture {got:?}, and this one is {expected:?}")]
    Architecture { expected: String, got: String },
    #[error("weights of adapters must be finite numbers, and that of {id} is {weight}")]
    Weight { id: AdapterId, weight: f32 },
    #[error("{count} adapters are asked for; there must be 1 to {max}")]
    Count { count: usize, max: usize },
    #[error(
        "the combined rank is {rank}, and at most {max} can be applied: use fewer adapters or merge them to a lower rank"
    )]
    Rank { rank: usize, max: usize },
    #[error("{} has invocation tokens, which other adapters of the request do not have: use it alone", .0)]
    MixedInvocation(AdapterId),
    #[error("no adapter {0} is registered; it was unloaded, or never loaded")]
    NotRegistered(AdapterId),
    #[error("{} has changed since it was registered; register it again", .0.display())]
    Changed(PathBuf),
    #[error(
        "the adapter takes {needed} bytes, and {available} of the budget of {budget} bytes are not in use by requests; \
         raise the budget for adapters or try again later"
    )]
    NoRoom { needed: usize, available: usize, budget: usize },
    #[error("adapters are not supported by the backend {0}; use the native backend")]
    Backend(&'static str),
    #[error("{0}")]
    Merge(String),
}
