//! Models: file formats, configuration, weights, architectures, and how they run on this machine's CPU.

pub mod adapters;
mod architectures;
mod blocks;
mod config;
mod cpu_runner;
mod decoder;
mod error;
pub mod formats;
mod hugging_face;
mod keys;
mod load;
mod open;
pub mod quantize;
mod rope;
mod run_state;

pub use architectures::{architecture_names, read_config};
pub use config::{
    AttentionConfig, Config, ExpertsConfig, FeedForward, FeedForwardConfig, KvSource, LayerConfig, Mixer,
};
pub use cpu_runner::{CpuRunner, RowKernelSlot};
pub use decoder::Model;
pub use error::LoadError;
pub use hugging_face::HuggingFaceError;
pub use open::{OpenError, folder_of, open};
pub use rope::{LongRope, RopeConfig, RopeScaling, Yarn};
pub use run_state::{RowLimits, RunState};
