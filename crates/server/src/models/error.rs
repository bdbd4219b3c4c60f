//! Why a model cannot be used.

use ruvllm_store::StoreError;

use super::RunnerKind;

/// Why a model could not be loaded; each kind of model has its own reasons.
pub type LoadFailure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("there is no model {name:?} on this server; available: {}", .known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    #[error("{loaded} models are loaded, which is the maximum, and all are in use; try again later")]
    Full { loaded: usize },
    #[error(
        "model {name:?} needs {} and only {} are free within --memory; {}", megabytes(*.needed_bytes), megabytes(*.free_bytes),
        remedy(.loaded)
    )]
    NoRoom {
        name: String,
        needed_bytes: usize,
        free_bytes: usize,
        /// The loaded models, with the bytes that unloading each would free.
        loaded: Vec<(String, usize)>,
    },
    #[error("model {name:?} was named when the server started and stays loaded")]
    Pinned { name: String },
    #[error("the name {name:?} belongs to an alias or to a model that is loaded; choose another")]
    Taken { name: String },
    #[error("model {name:?} is not loaded")]
    NotLoaded { name: String },
    #[error("model {name:?} cannot be loaded: {error}")]
    Load { name: String, error: LoadFailure },
    #[error("model {name:?} {kind} and cannot generate text; use {}", .kind.endpoint())]
    NoGenerator { name: String, kind: RunnerKind },
    #[error("model {name:?} {kind}; /v1/embeddings needs an embedding model, such as minilm")]
    NoEncoder { name: String, kind: RunnerKind },
    #[error("model {name:?} {kind}; reranking needs a cross-encoder")]
    NoReranker { name: String, kind: RunnerKind },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("loading model {name:?} was interrupted")]
    Lost { name: String },
}

fn megabytes(bytes: usize) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

/// Says what would make the model fit.
fn remedy(loaded: &[(String, usize)]) -> String {
    if loaded.is_empty() {
        return "raise --memory or lower --context".to_owned();
    }
    let loaded: Vec<String> = loaded.iter().map(|(name, bytes)| format!("{name} ({})", megabytes(*bytes))).collect();
    format!("unload one of these, which are in use: {}", loaded.join(", "))
}
