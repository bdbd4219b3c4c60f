//! The architectures: their embedding layers and the names of their tensors.

mod bert;
mod mpnet;

use candle_core::{Result, Tensor};

use crate::config::{Architecture, Config};
use crate::error::LoadError;
use crate::weights::Weights;

use bert::Bert;
use mpnet::Mpnet;

#[derive(Debug)]
pub(crate) enum Model {
    Bert(Bert),
    Mpnet(Mpnet),
}

impl Model {
    pub(crate) fn load(weights: &Weights, config: &Config) -> std::result::Result<Self, LoadError> {
        Ok(match config.architecture {
            Architecture::Bert | Architecture::Roberta => Self::Bert(Bert::load(weights, config)?),
            Architecture::Mpnet => Self::Mpnet(Mpnet::load(weights, config)?),
        })
    }

    /// Returns a vector for each token. `tokens` is `[texts, tokens]`, and so is `segments`, where not all have the first one;
    /// `mask` is added to the scores and hides padding, `[texts, 1, 1, tokens]`.
    pub(crate) fn forward(&self, tokens: &Tensor, segments: Option<&Tensor>, mask: Option<&Tensor>) -> Result<Tensor> {
        match self {
            Self::Bert(model) => model.forward(tokens, segments, mask),
            Self::Mpnet(model) => model.forward(tokens, mask),
        }
    }
}
