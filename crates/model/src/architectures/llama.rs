//! Llama and everything of its shape: norm, attention with rotary positions and grouped heads, norm, gated feed-forward.

use ruvllm_kernels::ops::{Activation, RopeStyle};

use super::Architecture;
use crate::config::{Config, FeedForward, FeedForwardConfig, LayerConfig, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut layer = layer(keys, RopeStyle::Interleaved)?;
    let Mixer::Attention(attention) = &mut layer.mixer;
    // Mistral's first models have one.
    attention.window = keys.optional_window()?;
    Config::uniform(keys, layer)
}

/// The layer of a model of this shape. Biases are loaded where a file has them.
pub(super) fn layer(keys: &Keys<'_>, style: RopeStyle) -> Result<LayerConfig, LoadError> {
    keys.refuse_experts()?;
    let feed_forward =
        FeedForwardConfig { width: keys.count("feed_forward_length")?, activation: Activation::Silu, post_norm: false };
    let mixer = Mixer::Attention(keys.attention(style)?);
    Ok(LayerConfig { mixer, feed_forward: FeedForward::Dense(feed_forward) })
}
