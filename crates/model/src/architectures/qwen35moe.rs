//! Qwen3.5 with experts, one of which every token goes through.

use ruvllm_kernels::ops::Activation;

use super::{Architecture, qwen35};
use crate::config::{Config, FeedForward, LayerConfig};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen35moe", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut experts = keys.experts(Activation::Silu)?;
    experts.shared_width = Some(keys.count("expert_shared_feed_forward_length")?);
    let feed_forward = FeedForward::Experts(experts);
    let mixers = qwen35::mixers(keys)?.into_iter();
    Config::new(keys, mixers.map(|mixer| LayerConfig { mixer, feed_forward: feed_forward.clone() }).collect())
}
