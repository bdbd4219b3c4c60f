//! Models: file formats, configuration, weights, architectures.

mod architectures;
mod config;
mod error;
pub mod formats;
mod load;
pub mod quantize;
mod run_state;

pub use architectures::ARCHITECTURES;
pub use architectures::llama::Llama as Model;
pub use config::Config;
pub use error::LoadError;
pub use run_state::RunState;
