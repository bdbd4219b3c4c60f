//! The description of a model: its dimensions, and what each of its layers is made of.

use ruvllm_kernels::ops::{Activation, HEAD_DIM_MAX, RopeStyle};
use ruvllm_runner::KvShape;

use crate::error::LoadError;
use crate::keys::Keys;

/// A decoder: embedding, layers, norm, output.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub architecture: String,
    pub hidden: usize,
    pub vocabulary: usize,
    /// Tokens that the model was made for.
    pub context: usize,
    pub norm_epsilon: f32,
    pub layers: Vec<LayerConfig>,
}

/// One layer: tokens exchange information, then each goes through a feed-forward block.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    pub mixer: Mixer,
    pub feed_forward: FeedForwardConfig,
}

/// How the tokens of a sequence exchange information.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    Attention(AttentionConfig),
}

/// Attention with grouped heads.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Maximum number of tokens that a token attends to; `None` is all before it.
    pub window: Option<usize>,
    pub rope: RopeConfig,
    /// Whether queries and keys are normalized before they are rotated.
    pub qk_norm: bool,
    /// Whether the result is normalized before it is added to the residual stream.
    pub post_norm: bool,
}

/// A gated feed-forward block.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedForwardConfig {
    pub width: usize,
    pub activation: Activation,
    /// Whether the result is normalized before it is added to the residual stream.
    pub post_norm: bool,
}

/// Rotary positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub base: f64,
    /// Positions are divided by this (linear context extension).
    pub divisor: f64,
    /// Elements of a head that are rotated.
    pub dims: usize,
    pub style: RopeStyle,
}

impl LayerConfig {
    /// Whether the result of a block is normalized before it is added to the residual stream.
    pub(crate) fn has_post_norm(&self) -> bool {
        let Mixer::Attention(attention) = &self.mixer;
        attention.post_norm || self.feed_forward.post_norm
    }
}

impl Config {
    /// Describes a model whose layers are all alike.
    pub(crate) fn uniform(keys: &Keys<'_>, layer: LayerConfig) -> Result<Self, LoadError> {
        let layers = vec![layer; keys.layers()?];
        Self::new(keys, layers)
    }

    /// Describes a model with these layers, and refuses what the kernels cannot compute.
    pub(crate) fn new(keys: &Keys<'_>, layers: Vec<LayerConfig>) -> Result<Self, LoadError> {
        let config = Self {
            architecture: keys.architecture().to_owned(),
            hidden: keys.count("embedding_length")?,
            vocabulary: keys.vocabulary(),
            context: keys.count("context_length")?,
            norm_epsilon: keys.positive_float("attention.layer_norm_rms_epsilon", None)?,
            layers,
        };
        config.check(keys)?;
        Ok(config)
    }

    fn check(&self, keys: &Keys<'_>) -> Result<(), LoadError> {
        let refuse = |key: &str, got: usize, problem| Err(keys.refusal(key, &got.to_string(), problem));
        for LayerConfig { mixer: Mixer::Attention(attention), feed_forward } in &self.layers {
            let AttentionConfig { heads, kv_heads, head_dim, rope, .. } = attention;
            if !heads.is_multiple_of(*kv_heads) {
                return refuse("attention.head_count_kv", *kv_heads, "does not divide the number of heads");
            }
            if !head_dim.is_multiple_of(16) || *head_dim > HEAD_DIM_MAX || *head_dim == 0 {
                return refuse("attention.key_length", *head_dim, "must be a multiple of 16, at most 256");
            }
            if !rope.dims.is_multiple_of(2) || rope.dims > *head_dim {
                return refuse("rope.dimension_count", rope.dims, "must be even and at most the head dimension");
            }
            // Buffers and pages have one shape for all layers.
            let first = self.attention(0);
            if (first.heads, first.kv_heads, first.head_dim) != (*heads, *kv_heads, *head_dim) {
                return refuse("attention.head_count", *heads, "differs between layers: not supported");
            }
            if self.layers[0].feed_forward.width != feed_forward.width {
                return refuse("feed_forward_length", feed_forward.width, "differs between layers: not supported");
            }
        }
        Ok(())
    }

    /// Returns the attention of a layer.
    pub(crate) fn attention(&self, layer: usize) -> &AttentionConfig {
        let Mixer::Attention(attention) = &self.layers[layer].mixer;
        attention
    }

    pub fn kv_shape(&self) -> KvShape {
        let AttentionConfig { kv_heads, head_dim, .. } = *self.attention(0);
        KvShape { layers: self.layers.len(), kv_heads, head_dim }
    }

    /// Estimates the memory of the buffers for batches of `rows` rows, and of the tables for `context` positions.
    pub fn run_state_bytes(&self, context: usize, rows: usize) -> usize {
        let AttentionConfig { heads, kv_heads, head_dim, rope, .. } = self.attention(0);
        let (attention, feed_forward) = ((2 * heads + 2 * kv_heads) * head_dim, self.layers[0].feed_forward.width);
        let row = size_of::<f32>() * (self.vocabulary + 3 * self.hidden + attention + feed_forward);
        let positions = context.saturating_mul(rope.dims).saturating_mul(size_of::<f32>());
        rows.saturating_mul(row).saturating_add(positions)
    }
}
