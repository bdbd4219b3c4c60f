//! BERT: adds up the embeddings of token, position and segment. RoBERTa is the same with one segment and shifted positions.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Embedding, LayerNorm};

use crate::config::Config;
use crate::error::LoadError;
use crate::transformer::{Layer, LayerNames};
use crate::weights::Weights;

const NAMES: LayerNames = LayerNames {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
};

#[derive(Debug)]
pub(crate) struct Bert {
    words: Embedding,
    /// Includes the embedding of the first segment. `[positions, hidden]`
    positions: Tensor,
    /// What the embedding of each segment adds to that of the first.
    segments: Embedding,
    /// First position of a text: RoBERTa's up to the padding token's id are for padding.
    first_position: usize,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

impl Bert {
    pub(super) fn load(weights: &Weights, config: &Config) -> std::result::Result<Self, LoadError> {
        let hidden = config.hidden;
        let words = weights.tensor("embeddings.word_embeddings.weight", &[config.vocabulary, hidden])?;
        let positions = weights.tensor("embeddings.position_embeddings.weight", &[config.positions, hidden])?;
        let segments = weights.tensor("embeddings.token_type_embeddings.weight", &[config.segments, hidden])?;
        let first_segment = segments.narrow(0, 0, 1)?;
        Ok(Self {
            words: Embedding::new(words, hidden),
            positions: positions.broadcast_add(&first_segment)?,
            segments: Embedding::new(segments.broadcast_sub(&first_segment)?, hidden),
            first_position: config.first_position(),
            norm: weights.norm("embeddings.LayerNorm", hidden, config.norm_epsilon)?,
            layers: Layer::load_all(weights, config, &NAMES)?,
        })
    }

    pub(super) fn forward(&self, tokens: &Tensor, segments: Option<&Tensor>, mask: Option<&Tensor>) -> Result<Tensor> {
        let positions = self.positions.narrow(0, self.first_position, tokens.dim(1)?)?;
        let mut x = self.words.forward(tokens)?.broadcast_add(&positions)?;
        if let Some(segments) = segments {
            x = (x + self.segments.forward(segments)?)?;
        }
        let x = self.norm.forward(&x)?;
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, mask))
    }
}
