//! Qwen3: Qwen2 without biases, and with an RMS norm over each head of queries and keys.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::{Config, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut layer = llama::layer(keys, RopeStyle::Halves)?;
    let Mixer::Attention(attention) = &mut layer.mixer;
    attention.qk_norm = true;
    Config::uniform(keys, layer)
}
