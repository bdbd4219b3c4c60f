//! Other ways to run models than the native engine, on candle: an [`Encoder`] turns texts into vectors, a [`CrossEncoder`] scores
//! documents by a query, and [`GENERATING`] are what runs generating models for the engine.
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
mod pooling;
mod transformer;
mod trunk;
mod weights;

#[cfg(feature = "generate")]
pub use candle_runner::{Candle, CandleError};
pub use config::Purpose;
pub use cross_encoder::CrossEncoder;
pub use encoder::{Encoder, EncoderFacts, is_encoder};
pub use error::LoadError;

/// Name of candle as a backend for generating models.
pub const CANDLE: &str = "candle";

/// The backends for generating models that this build has beside the native one.
#[cfg(feature = "generate")]
pub const GENERATING: ruvllm_runtime::OtherBackends = &[&Candle];
#[cfg(not(feature = "generate"))]
pub const GENERATING: ruvllm_runtime::OtherBackends = &[];
