//! SmolLM3: Llama with no positions in every fourth layer.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::{Config, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "smollm3", describe };

/// Layers from one without positions to the next.
const PERIOD: usize = 4;

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut layers = vec![llama::layer(keys, RopeStyle::Interleaved)?; keys.layers()?];
    for layer in layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD) {
        let Mixer::Attention(attention) = &mut layer.mixer;
        attention.rope = None;
    }
    Config::new(keys, layers)
}
