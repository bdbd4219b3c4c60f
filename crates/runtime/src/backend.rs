//! Which backend runs a model: the native one, or another that makes runners for the same engine.
//!
//! Queue, fairness, sampling, grammars, stop strings, streaming and the witness log are the engine's, whatever runs its
//! batches. `tests/engine/backends.rs` holds the contract that all backends keep.

use std::error::Error;
use std::fmt::{self, Debug};
use std::path::Path;
use std::sync::Arc;

use ruvllm_model::architecture_names;
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_runner::{KvShape, Runner};

/// Name of the backend that this crate brings along.
pub const NATIVE: &str = "native";

/// Why a backend cannot run a model.
pub type BackendError = Box<dyn Error + Send + Sync>;

/// A way to run models beside the native one.
pub trait Backend: Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Returns the architectures that it runs, as GGUF files name them.
    fn architectures(&self) -> &'static [&'static str];

    /// Whether it may be taken without being asked for by name.
    fn is_automatic(&self) -> bool {
        true
    }

    /// Checks all of a model file but the values of its weights.
    fn open(&self, path: &Path, gguf: &Gguf) -> Result<Box<dyn BackendModel>, BackendError>;
}

/// A model that a backend has checked, but not loaded.
pub trait BackendModel: Debug {
    fn vocabulary(&self) -> usize;

    /// Returns the maximum length of a sequence in tokens.
    fn context(&self) -> usize;

    /// Returns the bytes of the weights in memory.
    fn weights_bytes(&self) -> usize;

    /// Returns what pages count: the bytes that a token takes.
    fn kv_shape(&self) -> KvShape;

    /// Returns the bytes that a sequence takes beside those of its tokens, in a context of this length.
    fn state_bytes(&self, context: usize) -> usize;

    /// Returns the bytes of the buffers of a step.
    fn run_state_bytes(&self, context: usize, rows: usize) -> usize;

    /// Loads the weights of the same file. `progress` gets the bytes that are loaded.
    fn load(
        &self,
        gguf: &Gguf,
        sizes: LoadSizes,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Runner>, BackendError>;
}

/// How large a model that is loaded has to be.
#[derive(Clone, Copy, Debug)]
pub struct LoadSizes {
    /// Maximum length of a sequence in tokens.
    pub context: usize,
    /// Maximum number of sequences that run at the same time.
    pub sequences: usize,
    /// Maximum rows of a batch.
    pub rows_max: usize,
}

/// Which backend is to run a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The native one, or else the first that knows the architecture.
    #[default]
    Auto,
    /// The one of this name.
    Named(&'static str),
}

/// The backends beside the native one.
pub type OtherBackends = Arc<[Arc<dyn Backend>]>;

impl BackendChoice {
    /// Returns the backend for an architecture; `None` is the native one.
    pub fn backend(
        self,
        others: &OtherBackends,
        architecture: &str,
    ) -> Result<Option<Arc<dyn Backend>>, NoBackendError> {
        let is_meant = |name: &str, is_automatic: bool| match self {
            Self::Auto => is_automatic,
            Self::Named(asked) => asked == name,
        };
        if is_meant(NATIVE, true) && architecture_names().contains(&architecture) {
            return Ok(None);
        }
        let knows = |other: &&Arc<dyn Backend>| other.architectures().contains(&architecture);
        let mut meant = others.iter().filter(|other| is_meant(other.name(), other.is_automatic()));
        match meant.find(knows) {
            Some(other) => Ok(Some(Arc::clone(other))),
            None => {
                let (architecture, others) = (architecture.to_owned(), Arc::clone(others));
                Err(NoBackendError { asked: self, architecture, others })
            }
        }
    }
}

/// No backend, or not the one that was asked for, runs an architecture.
#[derive(Clone, Debug)]
pub struct NoBackendError {
    asked: BackendChoice,
    architecture: String,
    others: OtherBackends,
}

impl fmt::Display for NoBackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, architecture, others } = self;
        match asked {
            BackendChoice::Auto => write!(f, "architecture '{architecture}' is not supported")?,
            BackendChoice::Named(name) => write!(f, "architecture '{architecture}' is not supported by {name}")?,
        }
        write!(f, "; known to {NATIVE}: {}", architecture_names().join(", "))?;
        others.iter().try_for_each(|one| write!(f, "; to {}: {}", one.name(), one.architectures().join(", ")))
    }
}

impl Error for NoBackendError {}
