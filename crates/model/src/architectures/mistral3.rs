//! Mistral 3 and Ministral 3 (text): Llama with YaRN, and queries that grow with their positions.

use ruvllm_kernels::ops::{RopeStyle, Temperature};

use super::{Architecture, llama};
use crate::config::Config;
use crate::error::LoadError;
use crate::keys::Keys;
use crate::rope::RopeScaling;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "mistral3", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut attention = keys.attention(RopeStyle::Interleaved)?;
    attention.window = keys.optional_window()?;
    if let Some(scale) = keys.optional_float("attention.temperature_scale")? {
        let length = match attention.rope.as_ref().map(|rope| &rope.scaling) {
            Some(RopeScaling::Yarn(yarn)) => yarn.original_context,
            _ => keys.count("rope.scaling.original_context_length")?,
        };
        attention.temperature = Some(Temperature { scale, length });
    }
    Config::uniform(keys, llama::layer(keys, attention)?)
}
