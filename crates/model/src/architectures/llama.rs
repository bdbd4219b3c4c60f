//! Llama and everything of its shape: norm, attention with rotary positions and grouped heads, norm, gated feed-forward.

use ruvllm_kernels::ops::{Activation, RopeStyle};

use super::Architecture;
use crate::config::{Config, FeedForwardConfig, LayerConfig, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    Config::uniform(keys, layer(keys, RopeStyle::Interleaved)?)
}

/// The layer of a model of this shape. Biases on Q, K and V are loaded where a file has them.
pub(super) fn layer(keys: &Keys<'_>, style: RopeStyle) -> Result<LayerConfig, LoadError> {
    keys.refuse_experts()?;
    let feed_forward =
        FeedForwardConfig { width: keys.count("feed_forward_length")?, activation: Activation::Silu, post_norm: false };
    Ok(LayerConfig { mixer: Mixer::Attention(keys.attention(style)?), feed_forward })
}
