//! Other ways to run models than the native engine, on candle: an [`Encoder`] turns texts into vectors, a [`CrossEncoder`] scores
//! documents by a query, and [`generating`] gives what runs generating models for the engine.
//!
//! The first two read the folder that sentence-transformers write: `model.safetensors` with `config.json` and `tokenizer.json` beside it,
//! and optional files about pooling and the length of texts. Knows nothing of stores, HTTP or terminals.

mod architectures;
mod batches;
#[cfg(feature = "generate")]
mod candle_runner;
mod config;
mod cross_encoder;
mod encoder;
mod error;
mod gelu;
mod mistralrs;
mod pooling;
mod transformer;
mod trunk;
mod weights;

use std::path::PathBuf;
use std::sync::Arc;

use ruvllm_runtime::{Backend, OtherBackends};

#[cfg(feature = "generate")]
pub use candle_runner::{Candle, CandleError};
pub use config::Purpose;
pub use cross_encoder::CrossEncoder;
pub use encoder::{Encoder, EncoderFacts, is_encoder};
pub use error::LoadError;
pub use mistralrs::MistralRs;

/// Name of candle as a backend for generating models.
pub const CANDLE: &str = "candle";

/// Name of mistral.rs as such a backend.
pub const MISTRALRS: &str = "mistralrs";

/// Whether this build has candle for generating models.
pub const HAS_CANDLE: bool = cfg!(feature = "generate");

/// Returns the backends for generating models beside the native one. The program of mistral.rs is at a path, or found.
pub fn generating(mistralrs: Option<PathBuf>) -> OtherBackends {
    #[cfg(feature = "generate")]
    let candle: Option<Arc<dyn Backend>> = Some(Arc::new(Candle));
    #[cfg(not(feature = "generate"))]
    let candle = None;
    let mistralrs: Arc<dyn Backend> = Arc::new(MistralRs::new(mistralrs));
    candle.into_iter().chain([mistralrs]).collect()
}
