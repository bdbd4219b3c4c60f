//! Qwen3.5 with experts, one of which every token goes through.

use ruvllm_kernels::ops::Activation;

use super::{Architecture, qwen35};
use crate::config::{Config, FeedForward};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen35moe", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut experts = keys.experts(Activation::Silu)?;
    experts.shared_width = Some(keys.count("expert_shared_feed_forward_length")?);
    Config::with_mixers(keys, qwen35::mixers(keys)?, &FeedForward::Experts(experts))
}
