//! Phi-3 and Phi-4: Llama with fused projections, a window in some models, and long-RoPE.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::{Config, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "phi3", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut layer = llama::layer(keys, RopeStyle::Halves)?;
    let Mixer::Attention(attention) = &mut layer.mixer;
    attention.window = keys.optional_window()?;
    Config::uniform(keys, layer)
}
