//! Qwen3-MoE: Qwen3 with experts.

use ruvllm_kernels::ops::{Activation, RopeStyle};

use super::Architecture;
use crate::config::{Config, FeedForward, LayerConfig, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3moe", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut attention = keys.attention(RopeStyle::Halves)?;
    attention.qk_norm = true;
    let feed_forward = FeedForward::Experts(keys.experts(Activation::Silu)?);
    Config::uniform(keys, LayerConfig { mixer: Mixer::Attention(attention), feed_forward })
}
