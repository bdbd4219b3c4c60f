//! LFM2 with experts in all layers but the first few.

use ruvllm_kernels::ops::{Activation, Scoring};

use super::{Architecture, lfm2, llama};
use crate::config::{Config, FeedForward, LayerConfig};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "lfm2moe", describe };

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let dense = llama::swiglu(keys)?;
    let mut experts = keys.experts(Activation::Silu)?;
    if keys.gating_function()? == Some(2) {
        experts.scoring = Scoring::Sigmoid;
    }
    let experts = FeedForward::Experts(experts);
    let dense_layers = keys.leading_dense_layers()?;
    let layer = |(index, mixer)| LayerConfig {
        mixer,
        feed_forward: if index < dense_layers { dense.clone() } else { experts.clone() },
    };
    Config::new(keys, lfm2::mixers(keys)?.into_iter().enumerate().map(layer).collect())
}
