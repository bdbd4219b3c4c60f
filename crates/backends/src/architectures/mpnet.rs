//! MPNet: like BERT without segments, and every layer's attention prefers some distances between tokens to others.

use candle_core::{Device, Module, Result, Tensor};
use candle_nn::{Embedding, LayerNorm};

use crate::config::Config;
use crate::error::LoadError;
use crate::transformer::{Layer, LayerNames};
use crate::weights::Weights;

const NAMES: LayerNames = LayerNames {
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    attention_output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
};

/// Distances from here on share one bucket.
const DISTANCE_MAX: usize = 128;

#[derive(Debug)]
pub(crate) struct Mpnet {
    words: Embedding,
    positions: Tensor,
    /// First position of a text: those up to the padding token's id are for padding.
    first_position: usize,
    norm: LayerNorm,
    layers: Vec<Layer>,
    /// `[buckets, heads]`
    distances: Tensor,
    buckets: usize,
}

impl Mpnet {
    pub(super) fn load(weights: &Weights, config: &Config) -> std::result::Result<Self, LoadError> {
        let hidden = config.hidden;
        let words = weights.tensor("embeddings.word_embeddings.weight", &[config.vocabulary, hidden])?;
        let buckets = config.distance_buckets;
        Ok(Self {
            words: Embedding::new(words, hidden),
            positions: weights.tensor("embeddings.position_embeddings.weight", &[config.positions, hidden])?,
            first_position: config.first_position(),
            norm: weights.norm("embeddings.LayerNorm", hidden, config.norm_epsilon)?,
            layers: Layer::load_all(weights, config, &NAMES)?,
            distances: weights.tensor("encoder.relative_attention_bias.weight", &[buckets, config.heads])?,
            buckets,
        })
    }

    pub(super) fn forward(&self, tokens: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let length = tokens.dim(1)?;
        let positions = self.positions.narrow(0, self.first_position, length)?;
        let x = self.norm.forward(&self.words.forward(tokens)?.broadcast_add(&positions)?)?;
        let by_distance = self.bias(length)?;
        let bias = match mask {
            Some(mask) => by_distance.broadcast_add(mask)?,
            None => by_distance,
        };
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, Some(&bias)))
    }

    /// Returns the bias of attention scores by distance: `[1, heads, length, length]`
    fn bias(&self, length: usize) -> Result<Tensor> {
        let bucket = |at: usize| bucket(at / length, at % length, self.buckets);
        let buckets: Vec<u32> = (0..length * length).map(bucket).collect();
        let buckets = Tensor::from_vec(buckets, length * length, &Device::Cpu)?;
        self.distances.index_select(&buckets, 0)?.t()?.contiguous()?.reshape((1, (), length, length))
    }
}

/// Returns the bucket of the distance between two tokens. Each direction has half of the buckets: half of these hold one small
/// distance each, the others grow with the logarithm.
fn bucket(from: usize, to: usize, buckets: usize) -> u32 {
    let half = buckets / 2;
    let single = half / 2;
    let distance = from.abs_diff(to);
    let class = if distance < single {
        distance
    } else {
        let grown = (distance as f32 / single as f32).ln() / (DISTANCE_MAX as f32 / single as f32).ln();
        (single + (grown * (half - single) as f32) as usize).min(half - 1)
    };
    (if to > from { half + class } else { class }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_distances_have_a_bucket_each_and_far_ones_share_them() {
        let after: Vec<u32> = [0, 1, 7, 8, 11, 12, 16, 23, 64, 128, 500].map(|to| bucket(0, to, 32)).to_vec();
        assert_eq!(after, [0, 17, 23, 24, 24, 25, 26, 27, 30, 31, 31]);
        assert_eq!(bucket(7, 0, 32), 7);
        assert_eq!(bucket(500, 0, 32), 15);
    }
}
