//! LFM2: convolutions over the last few tokens in most layers, attention with QK norm in the others.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, llama};
use crate::config::{Config, Mixer, ShortConvConfig};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "lfm2", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    Config::with_mixers(keys, mixers(keys)?, &llama::feed_forward(keys)?)
}

/// A layer without KV heads is a convolution.
pub(super) fn mixers(keys: &Keys<'_>) -> Result<Vec<Mixer>, LoadError> {
    let mut attention = keys.attention(RopeStyle::Halves)?;
    attention.qk_norm = true;
    let conv = Mixer::ShortConv(ShortConvConfig { taps: keys.count("shortconv.l_cache")? });
    let attention = Mixer::Attention(attention);
    let layers = keys.kv_heads_of_layers()?.into_iter();
    Ok(layers.map(|kv_heads| if kv_heads == 0 { conv.clone() } else { attention.clone() }).collect())
}
