//! Other ways to run models than the native engine: an [`Encoder`] turns texts into vectors, a [`CrossEncoder`] scores documents
//! by a query, both on candle.
//!
//! They read the folder that sentence-transformers write: `model.safetensors` with `config.json` and `tokenizer.json` beside it,
//! and optional files about pooling and the length of texts. Knows nothing of stores, HTTP or terminals.

mod architectures;
mod batches;
mod config;
mod cross_encoder;
mod encoder;
mod error;
mod gelu;
mod pooling;
mod transformer;
mod trunk;
mod weights;

pub use config::Purpose;
pub use cross_encoder::CrossEncoder;
pub use encoder::{Encoder, EncoderFacts, is_encoder};
pub use error::LoadError;
