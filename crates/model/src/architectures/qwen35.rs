//! Qwen3.5: a gated delta net in most layers, attention with gated results in the others.

use ruvllm_kernels::ops::{DeltaShape, RopeStyle};

use super::{Architecture, llama};
use crate::config::{Config, DeltaNetConfig, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen35", describe };

/// Layers from one with attention to the next, where a file does not say which they are.
const PERIOD: usize = 4;

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    Config::with_mixers(keys, mixers(keys)?, &llama::feed_forward(keys)?)
}

pub(super) fn mixers(keys: &Keys<'_>) -> Result<Vec<Mixer>, LoadError> {
    let mut attention = keys.attention(RopeStyle::Halves)?;
    attention.qk_norm = true;
    attention.output_gate = true;
    let (value_heads, inner) = (keys.count("ssm.time_step_rank")?, keys.count("ssm.inner_size")?);
    if !inner.is_multiple_of(value_heads) {
        return Err(keys.refusal("ssm.inner_size", &inner.to_string(), "is not a multiple of the value heads"));
    }
    let delta_net = DeltaNetConfig {
        taps: keys.count("ssm.conv_kernel")?,
        shape: DeltaShape {
            key_heads: keys.count("ssm.group_count")?,
            value_heads,
            key_dim: keys.count("ssm.state_size")?,
            value_dim: inner / value_heads,
        },
    };
    let (attention, delta_net) = (Mixer::Attention(attention), Mixer::DeltaNet(delta_net));
    let layers = keys.recurrent_layers(PERIOD)?.into_iter();
    Ok(layers.map(|is_recurrent| if is_recurrent { delta_net.clone() } else { attention.clone() }).collect())
}
