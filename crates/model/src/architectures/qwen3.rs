//! Qwen3: Qwen2 without biases, and with an RMS norm over each head of queries and keys.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::Config;
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut attention = keys.attention(RopeStyle::Halves)?;
    attention.qk_norm = true;
    Config::uniform(keys, llama::layer(keys, attention)?)
}
