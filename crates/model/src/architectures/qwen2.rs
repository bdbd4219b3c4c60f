//! Qwen2: Llama with biases on Q, K and V, and the halves of a head rotated against each other.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::Config;
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen2", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    Config::uniform(keys, llama::layer(keys, keys.attention(RopeStyle::Halves)?)?)
}
