//! Other ways to run models than the native engine: an [`Encoder`] turns texts into vectors, on candle.
//!
//! It reads the folder that sentence-transformers write: `model.safetensors` with `config.json` and `tokenizer.json` beside it,
//! and optional files about pooling and the length of texts. Knows nothing of stores, HTTP or terminals.

mod architectures;
mod batches;
mod config;
mod encoder;
mod error;
mod gelu;
mod pooling;
mod transformer;
mod weights;

pub use encoder::{Encoder, EncoderFacts, is_encoder};
pub use error::LoadError;
