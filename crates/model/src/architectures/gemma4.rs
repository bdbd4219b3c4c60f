//! Gemma 4: as Gemma 3, but the layers with a window have heads of another size, the last layers read the keys and values of
//! earlier ones, values are normalized, tokens bring an input for each layer, and some have experts beside the dense block.

use ruvllm_kernels::ops::{Activation, RopeStyle};

use super::Architecture;
use crate::config::{AttentionConfig, Config, FeedForward, FeedForwardConfig, KvSource, LayerConfig, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;
use crate::rope::RopeConfig;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gemma4", describe };

/// Of layers with a window, where a file does not say.
const WINDOW_BASE: f32 = 10_000.0;

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let experts = match keys.optional_count("expert_count")? {
        0 => None,
        _ => Some(keys.experts(Activation::GeluTanh)?),
    };
    let windowed = keys.named_windowed_layers()?;
    let kv_heads = keys.kv_heads_of_layers()?;
    let widths = keys.counts_of_layers("feed_forward_length")?;
    let own = own_layers(keys, windowed.len())?;
    let mut layers = Vec::with_capacity(windowed.len());
    for (index, (is_windowed, width)) in windowed.iter().zip(widths).enumerate() {
        let mut attention = attention(keys, kv_heads[index], *is_windowed)?;
        attention.kv_source = if index >= own {
            let source = windowed[..own].iter().rposition(|of_other| of_other == is_windowed);
            let missing = || keys.refusal("attention.shared_kv_layers", &index.to_string(), "leaves nothing to share");
            KvSource::Layer(source.ok_or_else(missing)?)
        } else if keys.has_tensor(&format!("blk.{index}.attn_v.weight")) {
            KvSource::Own
        } else {
            KvSource::KeysOnly
        };
        let feed_forward = FeedForwardConfig { width, activation: Activation::GeluTanh, post_norm: true };
        let feed_forward = match &experts {
            None => FeedForward::Dense(feed_forward),
            Some(experts) => FeedForward::DenseAndExperts(feed_forward, experts.clone()),
        };
        layers.push(LayerConfig { mixer: Mixer::Attention(attention), feed_forward });
    }
    let config = Config::new(keys, layers)?;
    Ok(Config {
        embedding_scale: (config.hidden as f32).sqrt(),
        logit_softcap: keys.optional_float("final_logit_softcapping")?,
        layer_input_width: layer_input_width(keys)?,
        has_output_scales: true,
        ..config
    })
}

/// Returns how many layers have keys and values of their own: all but the last ones.
fn own_layers(keys: &Keys<'_>, layers: usize) -> Result<usize, LoadError> {
    let shared = keys.optional_count("attention.shared_kv_layers")?;
    match layers.checked_sub(shared) {
        Some(own @ 1..) => Ok(own),
        _ => Err(keys.refusal("attention.shared_kv_layers", &shared.to_string(), "leaves no keys and values")),
    }
}

fn attention(keys: &Keys<'_>, kv_heads: usize, is_windowed: bool) -> Result<AttentionConfig, LoadError> {
    let all = AttentionConfig {
        scale: 1.0,
        qk_norm: true,
        value_norm: true,
        post_norm: true,
        ..keys.attention_with(RopeStyle::Halves, kv_heads)?
    };
    if !is_windowed {
        return Ok(all);
    }
    let head_dim = keys.count_or("attention.key_length_swa", all.head_dim)?;
    if keys.count_or("attention.value_length_swa", head_dim)? != head_dim {
        return Err(keys.refusal("attention.key_length_swa", &head_dim.to_string(), "differs from the value length"));
    }
    let base = keys.positive_float("rope.freq_base_swa", Some(WINDOW_BASE))?.into();
    let dims = keys.count_or("rope.dimension_count_swa", head_dim)?;
    let rope = all.rope.map(|rope| RopeConfig { base, dims, has_divisors: false, ..rope });
    Ok(AttentionConfig { head_dim, rope, window: Some(keys.count("attention.sliding_window")?), ..all })
}

fn layer_input_width(keys: &Keys<'_>) -> Result<Option<usize>, LoadError> {
    let key = "embedding_length_per_layer_input";
    match keys.optional_count(key)? {
        0 => Ok(None),
        width if width.is_multiple_of(32) => Ok(Some(width)),
        width => Err(keys.refusal(key, &width.to_string(), "must be a multiple of 32")),
    }
}
