//! Gemma 2: norms before and after each block, GeGLU, soft caps, and attention within a window in every second layer.

use ruvllm_kernels::ops::{Activation, RopeStyle};

use super::Architecture;
use crate::config::{AttentionConfig, Config, FeedForward, FeedForwardConfig, LayerConfig, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gemma2", describe };

/// Layers from one that attends to everything to the next.
const PERIOD: usize = 2;
/// Only the largest model scales scores by the width of the residual stream; files do not say it.
const LARGEST_LAYERS: usize = 46;

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut all = keys.attention(RopeStyle::Halves)?;
    all.post_norm = true;
    all.softcap = Some(keys.positive_float("attn_logit_softcapping", Some(50.0))?);
    if keys.layers()? == LARGEST_LAYERS {
        all.scale = largest_scale(keys, all.heads)?;
    }
    let within = AttentionConfig { window: Some(keys.count("attention.sliding_window")?), ..all.clone() };
    let logit_softcap = Some(keys.positive_float("final_logit_softcapping", Some(30.0))?);
    let config = decoder(keys, PERIOD, &within, &all)?;
    Ok(Config { logit_softcap, ..config })
}

/// A decoder of this family, in which each last of `period` layers attends to all tokens.
pub(super) fn decoder(
    keys: &Keys<'_>,
    period: usize,
    within: &AttentionConfig,
    all: &AttentionConfig,
) -> Result<Config, LoadError> {
    let feed_forward = FeedForwardConfig {
        width: keys.count("feed_forward_length")?,
        activation: Activation::GeluTanh,
        post_norm: true,
    };
    let layer = |is_windowed: bool| LayerConfig {
        mixer: Mixer::Attention(if is_windowed { within.clone() } else { all.clone() }),
        feed_forward: FeedForward::Dense(feed_forward.clone()),
    };
    let config = Config::new(keys, keys.windowed_layers(period)?.into_iter().map(layer).collect())?;
    Ok(Config {
        embedding_scale: (config.hidden as f32).sqrt(),
        logit_softcap: keys.optional_float("final_logit_softcapping")?,
        ..config
    })
}

pub(super) fn largest_scale(keys: &Keys<'_>, heads: usize) -> Result<f32, LoadError> {
    let hidden = keys.count("embedding_length")?;
    Ok(1.0 / ((hidden / heads) as f32).sqrt())
}
