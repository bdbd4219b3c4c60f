//! Phi-2: attention and feed-forward beside each other behind one norm with a bias, and biases everywhere.

use candle_core::Device;
use candle_transformers::models::quantized_phi::ModelWeights;

use super::{Architecture, CONTEXT_MAX, Cache, CandleModel, Description, Shape};
use crate::candle_runner::error::CandleError;
use crate::candle_runner::keys::Keys;
use crate::candle_runner::tensors::Expected;

/// Which candle's code does not read.
const ROPE_BASE: f32 = 10_000.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi2",
    describe,
    load: |content, reader| Ok(CandleModel::Phi2(ModelWeights::from_gguf(content, reader, &Device::Cpu)?)),
};

fn describe(keys: &Keys<'_>) -> Result<Description, CandleError> {
    // The key for it is four times the width in all files, whatever the model has.
    let shape = Shape::of(keys, keys.rows_of("blk.0.ffn_up.weight"))?;
    let Shape { hidden, heads, .. } = shape;
    let rotated = keys.count("rope.dimension_count")?;
    super::check_width(keys, &shape)?;
    super::check_heads(keys, &shape, rotated)?;
    keys.expect("attention.head_count_kv", heads)?;
    keys.refuse_scaling()?;
    let base = keys.positive("rope.freq_base", Some(ROPE_BASE))?;
    keys.require("rope.freq_base", base, base == ROPE_BASE, "candle's code takes 10000 for granted")?;
    let metadata = keys.entries(
        &[
            ("attention.head_count", heads),
            ("attention.head_count_kv", heads),
            ("block_count", shape.layers),
            ("embedding_length", hidden),
            ("rope.dimension_count", rotated),
        ],
        &[("attention.layer_norm_epsilon", keys.positive("attention.layer_norm_epsilon", None)?)],
    );
    let context = keys.count("context_length")?.min(CONTEXT_MAX);
    Ok(Description { shape, context, tensors: tensors(&shape), metadata, cache: Cache::Masks })
}

fn tensors(shape: &Shape) -> Vec<Expected> {
    let Shape { layers, hidden, feed_forward, vocabulary, .. } = *shape;
    let pair = |name: &str, inputs: usize, outputs: usize| {
        [("weight", vec![inputs, outputs]), ("bias", vec![outputs])]
            .map(|(kind, dims)| (format!("{name}.{kind}"), dims))
    };
    let norm = |name: &str| ["weight", "bias"].map(|kind| (format!("{name}.{kind}"), vec![hidden]));
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![hidden, vocabulary])];
    tensors.extend(norm("output_norm"));
    tensors.extend(pair("output", hidden, vocabulary));
    for layer in 0..layers {
        tensors.extend(norm(&format!("blk.{layer}.attn_norm")));
        tensors.extend(pair(&format!("blk.{layer}.attn_output"), hidden, hidden));
        tensors.extend(pair(&format!("blk.{layer}.ffn_up"), hidden, feed_forward));
        tensors.extend(pair(&format!("blk.{layer}.ffn_down"), feed_forward, hidden));
    }
    let mut tensors: Vec<Expected> = tensors.into_iter().map(|(name, dims)| Expected::new(name, &dims)).collect();
    for layer in 0..layers {
        for (name, dims) in pair(&format!("blk.{layer}.attn_qkv"), hidden, 3 * hidden) {
            // Newer files have the three apart.
            let parts = ["attn_q.", "attn_k.", "attn_v."].map(|part| name.replace("attn_qkv.", part));
            tensors.push(Expected::new(name, &dims).or_joined(parts));
        }
    }
    tensors
}
