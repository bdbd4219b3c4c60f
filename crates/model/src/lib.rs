//! Models: file formats, configuration, weights, architectures, and how they run on this machine's CPU.

mod architectures;
mod blocks;
mod config;
mod cpu_runner;
mod decoder;
mod error;
pub mod formats;
mod keys;
mod load;
pub mod quantize;
mod run_state;

pub use architectures::{architecture_names, read_config};
pub use config::{AttentionConfig, Config, FeedForwardConfig, LayerConfig, Mixer, RopeConfig};
pub use cpu_runner::CpuRunner;
pub use decoder::Model;
pub use error::LoadError;
pub use run_state::RunState;
