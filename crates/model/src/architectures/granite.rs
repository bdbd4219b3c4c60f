//! Granite (dense): Llama with four scales.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::Config;
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "granite", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut attention = keys.attention(RopeStyle::Interleaved)?;
    if !keys.flag("rope.scaling.finetuned", true)? {
        attention.rope = None;
    }
    attention.scale = keys.positive_float("attention.scale", Some(attention.scale))?;
    Ok(Config {
        embedding_scale: keys.positive_float("embedding_scale", Some(1.0))?,
        residual_scale: keys.positive_float("residual_scale", Some(1.0))?,
        // Given as what logits are divided by.
        logit_scale: 1.0 / keys.positive_float("logit_scale", Some(1.0))?,
        ..Config::uniform(keys, llama::layer(keys, attention)?)?
    })
}
