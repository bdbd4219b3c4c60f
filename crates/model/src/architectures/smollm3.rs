//! SmolLM3: Llama with no positions in every fourth layer.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::{AttentionConfig, Config};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "smollm3", describe };

/// Layers from one without positions to the next.
const PERIOD: usize = 4;

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let rotated = keys.attention(RopeStyle::Interleaved)?;
    let plain = AttentionConfig { rope: None, ..rotated.clone() };
    let mut layers = vec![llama::layer(keys, rotated)?; keys.layers()?];
    let plain = llama::layer(keys, plain)?;
    layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD).for_each(|layer| layer.clone_from(&plain));
    Config::new(keys, layers)
}
