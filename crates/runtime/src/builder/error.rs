//! Why an engine cannot be built.

use std::path::PathBuf;

use ruvllm_engine::EvaluateError;
use ruvllm_model::formats::gguf::MetadataError;
use ruvllm_model::quantize::AtLoadError;
use ruvllm_model::{LoadError, OpenError};
use ruvllm_text::{ChatTemplateError, GrammarError, TokenizerError};

use super::ModelMemory;
use super::vocabulary::ReadError;
use crate::hardware::KernelsError;
use crate::{BackendError, KernelPackError, NoBackendError};

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    File(#[from] OpenError),
    #[error("quantize: {0}")]
    Quantize(#[from] AtLoadError),
    #[error("the file's metadata cannot be used: {0}")]
    Metadata(#[from] MetadataError),
    #[error("the model cannot be loaded: {0}")]
    Model(#[from] LoadError),
    #[error(transparent)]
    NoBackend(#[from] NoBackendError),
    #[error("{backend} cannot run the model: {source}")]
    Backend { backend: &'static str, source: BackendError },
    #[error("the model has no vocabulary; a folder of safetensors needs tokenizer.json beside its weights")]
    NoVocabulary,
    #[error("the model's vocabulary cannot be used: {0}")]
    Vocabulary(String),
    #[error("the model's tokenizer cannot be built: {0}")]
    Tokenizer(#[from] TokenizerError),
    #[error("{}: {problem}", path.display())]
    TokenizerFile { path: PathBuf, problem: String },
    #[error("the model's chat template cannot be used: {0}")]
    Template(#[from] ChatTemplateError),
    #[error("the tokenizer has {tokenizer} tokens and the model {model}: the file is damaged")]
    VocabularySize { tokenizer: usize, model: usize },
    #[error(transparent)]
    Kernels(#[from] KernelsError),
    #[error("the model's KV formats cannot be measured: {0}")]
    Calibration(#[source] EvaluateError),
    #[error(
        "the model does not fit: it needs {} for weights, {} for buffers and {} for keys and values of {context} tokens, and \
         {} are free; {remedy}",
        gib(needed.weights_bytes), gib(needed.working_bytes), gib(needed.kv_min_bytes), gib(*available)
    )]
    DoesNotFit { needed: Box<ModelMemory>, available: usize, context: usize, remedy: String },
    #[error(transparent)]
    KernelPack(#[from] KernelPackError),
    #[error("{} cannot draft for this model: {reason}", path.display())]
    DraftModel { path: PathBuf, reason: String },
    #[error("no file for the weights of experts can be made in {}: {source}", folder.display())]
    ExpertFile { folder: PathBuf, source: std::io::Error },
    #[error("{budget} bytes are too few for KV pages of {page} bytes")]
    DiskTooSmall { budget: u64, page: usize },
    #[error(
        "the quotas guarantee {guaranteed} bytes to tenants, more than half of the KV budget of {budget}: nobody else could \
         run long texts; lower them or raise the budget"
    )]
    Guarantees { guaranteed: usize, budget: usize },
    #[error("the model's vocabulary cannot be used for grammars: {0}")]
    Grammars(#[source] GrammarError),
    #[error("the engine's thread cannot be started: {0}")]
    Thread(#[source] std::io::Error),
    #[error("{field} is {got}; it must be {wanted}")]
    Option { field: &'static str, got: usize, wanted: &'static str },
}

impl From<ReadError> for BuildError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Metadata(error) => Self::Metadata(error),
            ReadError::Vocabulary(error) => Self::Vocabulary(error.to_string()),
        }
    }
}

/// A size as people read it.
fn gib(bytes: usize) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}
