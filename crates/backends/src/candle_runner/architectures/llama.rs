//! Llama, for comparison with the native backend. Positions are rotated as they are: no scaling, and so no Llama 3.1.

use candle_core::Device;
use candle_transformers::models::quantized_llama::ModelWeights;

use super::{Architecture, CONTEXT_MAX, Cache, CandleModel, Description, Shape};
use crate::candle_runner::error::CandleError;
use crate::candle_runner::keys::Keys;
use crate::candle_runner::tensors::Expected;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    describe,
    load: |content, reader| Ok(CandleModel::Llama(ModelWeights::from_gguf(content, reader, &Device::Cpu)?)),
};

fn describe(keys: &Keys<'_>) -> Result<Description, CandleError> {
    let shape = Shape::of(keys, keys.rows_of("blk.0.ffn_gate.weight"))?;
    let Shape { hidden, heads, .. } = shape;
    super::check_width(keys, &shape)?;
    super::check_heads(keys, &shape, shape.head_dim)?;
    for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        keys.expect(key, shape.head_dim)?;
    }
    keys.refuse_scaling()?;
    keys.refuse("expert_count")?;
    let context = keys.count("context_length")?.min(CONTEXT_MAX);
    keys.refuse_window(context)?;
    let metadata = keys.entries(
        &[
            ("attention.head_count", heads),
            ("attention.head_count_kv", shape.kv_heads),
            ("block_count", shape.layers),
            ("embedding_length", hidden),
            ("rope.dimension_count", shape.head_dim),
        ],
        &[
            ("attention.layer_norm_rms_epsilon", keys.positive("attention.layer_norm_rms_epsilon", None)?),
            ("rope.freq_base", keys.positive("rope.freq_base", Some(10_000.0))?),
        ],
    );
    Ok(Description { shape, context, tensors: tensors(&shape), metadata, cache: Cache::Masks })
}

fn tensors(shape: &Shape) -> Vec<Expected> {
    let Shape { layers, hidden, kv_heads, head_dim, feed_forward, vocabulary, .. } = *shape;
    let mut tensors = vec![
        Expected::new("token_embd.weight", &[hidden, vocabulary]),
        Expected::new("output_norm.weight", &[hidden]),
        Expected::new("output.weight", &[hidden, vocabulary]).optional(),
    ];
    for layer in 0..layers {
        for (name, dims) in [
            ("attn_norm", &[hidden][..]),
            ("attn_q", &[hidden, hidden]),
            ("attn_k", &[hidden, kv_heads * head_dim]),
            ("attn_v", &[hidden, kv_heads * head_dim]),
            ("attn_output", &[hidden, hidden]),
            ("ffn_norm", &[hidden]),
            ("ffn_gate", &[hidden, feed_forward]),
            ("ffn_up", &[hidden, feed_forward]),
            ("ffn_down", &[feed_forward, hidden]),
        ] {
            tensors.push(Expected::new(format!("blk.{layer}.{name}.weight"), dims));
        }
    }
    tensors
}
