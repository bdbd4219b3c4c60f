//! The sizes that kernels see in a model.

use ruvllm_kernels::ops::{Activation, RopeStyle};
use ruvllm_model::{Config, CpuRunner, FeedForward, KvSource, Mixer};
use ruvllm_packs::ModelShapes;

/// Returns those of the first layer with attention, one with positions if there is any, and of the residual stream.
pub(crate) fn shapes_of(runner: &CpuRunner) -> ModelShapes {
    let config = runner.config();
    let attention = || {
        config.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention),
            _ => None,
        })
    };
    let (feed_forward, activation) = gates_of(config);
    let gated = runner.gated_cols().unwrap_or_default();
    let shapes = ModelShapes { hidden: config.hidden, feed_forward, activation, gated, ..ModelShapes::default() };
    let Some(attention) = attention().find(|layer| layer.rope.is_some()).or_else(|| attention().next()) else {
        return ModelShapes { pairs: 0, ..shapes };
    };
    let rope = attention.rope.as_ref();
    let keys = if matches!(attention.kv_source, KvSource::Layer(_)) { 0 } else { attention.kv_heads };
    ModelShapes {
        heads: attention.heads + keys,
        head_dim: attention.head_dim,
        pairs: rope.map_or(0, |rope| rope.dims / 2),
        rope_style: rope.map_or(RopeStyle::Interleaved, |rope| rope.style),
        ..shapes
    }
}

/// Returns the width of feed-forward blocks and what gates go through.
fn gates_of(config: &Config) -> (usize, Activation) {
    match config.layers.first().map(|layer| &layer.feed_forward) {
        Some(FeedForward::Dense(config) | FeedForward::DenseAndExperts(config, _)) => (config.width, config.activation),
        Some(FeedForward::Experts(config)) => (config.width, config.activation),
        None => (ModelShapes::default().feed_forward, Activation::Silu),
    }
}
