//! One file per architecture.

pub(crate) mod llama;

/// The names in `general.architecture` that we can run.
pub const ARCHITECTURES: [&str; 2] = ["llama", "qwen2"];
