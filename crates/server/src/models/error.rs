//! Why a model cannot be used.

use ruvllm_runtime::AdapterError;
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
    #[error(
        "adapters need {} and only {} are free within --memory; raise it, or lower --adapter-memory",
        megabytes(*.needed_bytes), megabytes(*.free_bytes)
    )]
    NoRoomForAdapters { needed_bytes: usize, free_bytes: usize },
    #[error("model {name:?} was named when the server started and stays loaded")]
    Pinned { name: String },
    #[error(
        "the name {name:?} belongs to an alias, to a model that is loaded, or to the choice between models; use another"
    )]
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
    #[error(
        "there is no adapter {name:?}{}; {}", .base.as_ref().map_or_else(String::new, |base| format!(" for model {base:?}")),
        if .known.is_empty() { "none are loaded".to_owned() } else { format!("available: {}", .known.join(", ")) }
    )]
    UnknownAdapter { name: String, base: Option<String>, known: Vec<String> },
    #[error("several models have an adapter {name:?}; name one of {}", .names.join(", "))]
    AmbiguousAdapter { name: String, names: Vec<String> },
    #[error("model {name:?} names the adapter {adapter:?} already; name the model alone, or leave out the other field")]
    TwoAdapters { name: String, adapter: String },
    #[error("{name:?} cannot name an adapter: {why}")]
    AdapterName { name: String, why: &'static str },
    #[error("{}", taken(.name, *.is_full))]
    AdapterTaken { name: String, is_full: bool },
    #[error(
        "lora_path must be the name of an adapter in the store (ruvllm adapters list){}",
        if *.has_folders { ", or a path below a folder of --adapter-folder" } else { "; serve --adapter-folder allows paths" }
    )]
    AdapterPath { has_folders: bool },
    #[error(
        "it must be told which model adapter {adapter:?} is for: name it as BASE:{adapter}{}",
        if .served.is_empty() { String::new() } else { format!(", with one of {}", .served.join(", ")) }
    )]
    WhichModel { adapter: String, served: Vec<String> },
    #[error("the files of adapter {name:?} have changed since it was loaded; load it again")]
    AdapterChanged { name: String },
    #[error("adapter {name:?} cannot be used: {told}")]
    Adapter {
        name: String,
        /// What clients are told: without folders of this machine.
        told: String,
        error: Box<AdapterError>,
    },
    #[error("kernel pack {name:?} cannot be used: {}", chain(&**.error))]
    KernelPack { name: String, error: LoadFailure },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("loading model {name:?} was interrupted")]
    Lost { name: String },
}

fn taken(name: &str, is_full: bool) -> String {
    match is_full {
        true => format!("adapter '{name}' cannot be loaded: there are too many; unload some"),
        false => format!(
            "The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set \
             'load_inplace' to True."
        ),
    }
}

/// Joins an error and its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
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
