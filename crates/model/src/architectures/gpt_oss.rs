//! gpt-oss: experts, attention sinks, biases everywhere, and attention within a window in every second layer.

use ruvllm_kernels::ops::{Activation, RopeStyle};

use super::Architecture;
use crate::config::{Config, FeedForward, LayerConfig, Mixer};
use crate::error::LoadError;
use crate::keys::Keys;
use crate::rope::RopeScaling;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gpt-oss", describe };

/// Layers from one that attends to everything to the next.
const PERIOD: usize = 2;

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut all = keys.attention(RopeStyle::Halves)?;
    all.sinks = true;
    if let Some(RopeScaling::Yarn(yarn)) = all.rope.as_mut().map(|rope| &mut rope.scaling) {
        // Files do not say it.
        yarn.whole_pairs = false;
    }
    let window = Some(keys.count("attention.sliding_window")?);
    let feed_forward = FeedForward::Experts(keys.experts(Activation::SwigluOai)?);
    let layer = |is_windowed: bool| {
        let mut attention = all.clone();
        attention.window = window.filter(|_| is_windowed);
        LayerConfig { mixer: Mixer::Attention(attention), feed_forward: feed_forward.clone() }
    };
    Config::new(keys, keys.windowed_layers(PERIOD)?.into_iter().map(layer).collect())
}
