//! GLM-4 (0414): half of each head is rotated, norms before and after both blocks, gate and up in one matrix.

use candle_core::{DType, Device};
use candle_transformers::models::quantized_glm4::ModelWeights;

use super::{Architecture, Cache, CandleModel, Description, Shape};
use crate::candle_runner::error::CandleError;
use crate::candle_runner::keys::Keys;
use crate::candle_runner::tensors::Expected;

/// Tokens by which candle's cache grows.
const GROWS_BY: usize = 512;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm4",
    describe,
    load: |content, reader| Ok(CandleModel::Glm4(ModelWeights::from_gguf(content, reader, &Device::Cpu, DType::F32)?)),
};

fn describe(keys: &Keys<'_>) -> Result<Description, CandleError> {
    let shape = Shape::of(keys, keys.rows_of("blk.0.ffn_up.weight") / 2)?;
    let shape = Shape { head_dim: keys.count_or("attention.key_length", shape.head_dim)?, ..shape };
    let Shape { hidden, heads, .. } = shape;
    // Candle's code does not read how much of a head is rotated.
    let (head_dim, rotated) = (shape.head_dim, shape.head_dim / 2);
    super::check_heads(keys, &shape, rotated)?;
    keys.expect("rope.dimension_count", rotated)?;
    keys.expect("attention.value_length", head_dim)?;
    keys.refuse_scaling()?;
    keys.refuse("nextn_predict_layers")?;
    // Of models that see pictures, whose positions have several parts.
    keys.refuse("rope.dimension_sections")?;
    let metadata = keys.entries(
        &[
            ("attention.head_count", heads),
            ("attention.head_count_kv", shape.kv_heads),
            ("attention.key_length", head_dim),
            ("block_count", shape.layers),
            ("embedding_length", hidden),
        ],
        &[
            ("attention.layer_norm_rms_epsilon", keys.positive("attention.layer_norm_rms_epsilon", None)?),
            ("rope.freq_base", keys.positive("rope.freq_base", Some(10_000.0))?),
        ],
    );
    let context = keys.count("context_length")?;
    Ok(Description { shape, context, tensors: tensors(&shape), metadata, cache: Cache::Growing(GROWS_BY) })
}

fn tensors(shape: &Shape) -> Vec<Expected> {
    let Shape { layers, hidden, heads, kv_heads, head_dim, feed_forward, vocabulary } = *shape;
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let mut tensors = vec![
        Expected::new("token_embd.weight", &[hidden, vocabulary]),
        Expected::new("output_norm.weight", &[hidden]),
        Expected::new("output.weight", &[hidden, vocabulary]).optional(),
    ];
    for layer in 0..layers {
        for (name, dims) in [
            ("attn_norm", &[hidden][..]),
            ("attn_q", &[hidden, queries]),
            ("attn_k", &[hidden, keys]),
            ("attn_v", &[hidden, keys]),
            ("attn_output", &[queries, hidden]),
            ("post_attention_norm", &[hidden]),
            ("ffn_norm", &[hidden]),
            ("ffn_up", &[hidden, 2 * feed_forward]),
            ("ffn_down", &[feed_forward, hidden]),
            ("post_ffw_norm", &[hidden]),
        ] {
            tensors.push(Expected::new(format!("blk.{layer}.{name}.weight"), dims));
        }
        for (name, rows) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
            tensors.push(Expected::new(format!("blk.{layer}.{name}.bias"), &[rows]).optional());
        }
    }
    tensors
}
