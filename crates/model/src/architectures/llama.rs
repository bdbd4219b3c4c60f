//! Llama and everything of its shape: norm, attention with rotary positions and grouped heads, norm, gated feed-forward.

use ruvllm_kernels::ops::{Activation, RopeStyle};

use super::Architecture;
use crate::config::{AttentionConfig, Config, FeedForward, FeedForwardConfig, LayerConfig, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut attention = keys.attention(RopeStyle::Interleaved)?;
    // Mistral's first models have one.
    attention.window = keys.optional_window()?;
    Config::uniform(keys, layer(keys, attention)?)
}

/// The layer of a model of this shape. Biases are loaded where a file has them.
/// A layer of attention and a gated feed-forward block.
pub(super) fn layer(keys: &Keys<'_>, attention: AttentionConfig) -> Result<LayerConfig, LoadError> {
    Ok(LayerConfig { mixer: Mixer::Attention(attention), feed_forward: feed_forward(keys)? })
}

pub(super) fn feed_forward(keys: &Keys<'_>) -> Result<FeedForward, LoadError> {
    keys.refuse_experts()?;
    swiglu(keys)
}

pub(super) fn swiglu(keys: &Keys<'_>) -> Result<FeedForward, LoadError> {
    let width = keys.count("feed_forward_length")?;
    Ok(FeedForward::Dense(FeedForwardConfig { width, activation: Activation::Silu, post_norm: false }))
}
