//! Phi-3 and Phi-4: Llama with fused projections, a window in some models, and long-RoPE.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::Config;
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "phi3", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut attention = keys.attention(RopeStyle::Halves)?;
    attention.window = keys.optional_window()?;
    Config::uniform(keys, llama::layer(keys, attention)?)
}
