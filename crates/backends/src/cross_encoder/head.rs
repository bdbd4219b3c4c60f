//! The layers that turn the vector of a pair's first token into a score.

use candle_core::{Module, Result, Tensor};
use candle_nn::Linear;

use crate::config::{Architecture, Config};
use crate::error::LoadError;
use crate::weights::Weights;

#[derive(Debug)]
pub(super) struct Head {
    dense: Linear,
    output: Linear,
}

impl Head {
    pub(super) fn load(weights: &Weights, config: &Config) -> std::result::Result<Self, LoadError> {
        let hidden = config.hidden;
        Ok(match config.architecture {
            // The first layer is the pooler, which is trained with the others.
            Architecture::Bert => Self {
                dense: weights.linear("pooler.dense", hidden, hidden)?,
                output: weights.head("classifier", hidden, 1)?,
            },
            Architecture::Mpnet | Architecture::Roberta => Self {
                dense: weights.head("classifier.dense", hidden, hidden)?,
                output: weights.head("classifier.out_proj", hidden, 1)?,
            },
        })
    }

    /// Returns a logit for each pair. `hidden` is `[pairs, tokens, hidden]`.
    pub(super) fn logits(&self, hidden: &Tensor) -> Result<Vec<f32>> {
        let first = hidden.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?;
        self.output.forward(&self.dense.forward(&first)?.tanh()?)?.squeeze(1)?.to_vec1()
    }
}
