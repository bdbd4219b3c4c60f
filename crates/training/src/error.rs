//! Why a training run cannot begin or go on.

use std::io;
use std::path::PathBuf;

use ruvllm_model::LoadError;
use ruvllm_model::adapters::AdapterError;
use thiserror::Error;

/// Why an adapter cannot be trained.
#[derive(Debug, Error)]
pub enum TrainError {
    #[error(transparent)]
    Model(#[from] LoadError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error("{architecture} models have {what}, which gradients cannot go through here: train another model")]
    Unsupported { architecture: String, what: &'static str },
    #[error("{option} is {got}: {remedy}")]
    Option { option: &'static str, got: String, remedy: String },
    #[error("item {index} {problem}")]
    Item { index: usize, problem: String },
    #[error(
        "training takes {needed} bytes of memory, and {budget} may be used: take fewer tokens for a step ({step_tokens} now) \
         or a lower rank"
    )]
    Memory { needed: usize, budget: usize, step_tokens: usize },
    #[error("the loss is {loss} in step {step}: a lower learning rate is needed, or the model's weights are damaged")]
    NotFinite { step: usize, loss: f64 },
    #[error("the training was stopped")]
    Stopped,
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} cannot be resumed: {problem}", path.display())]
    State { path: PathBuf, problem: String },
}
