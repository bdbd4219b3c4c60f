//! How the tokens of a sequence exchange information in a layer.

use std::sync::Arc;

use ruvllm_kernels::Worker;
use ruvllm_kernels::ops::{HostPages, Linear, RopeTable};
use ruvllm_runner::CheckedBatch;

use super::{AttentionBlock, DeltaNetBlock, ShortConvBlock};
use crate::RunState;
use crate::adapters::Target;
use crate::config::Mixer;
use crate::error::LoadError;
use crate::load::Tensors;

#[derive(Debug)]
pub(crate) enum MixerBlock {
    Attention(AttentionBlock),
    ShortConv(ShortConvBlock),
    DeltaNet(DeltaNetBlock),
}

impl MixerBlock {
    /// `number` is that among the layers of its kind: those that have keys and values, or those that are recurrent.
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        config: &Mixer,
        common: (usize, f32),
        (layer, number): (usize, usize),
        rope: Option<Arc<RopeTable>>,
    ) -> Result<Self, LoadError> {
        Ok(match config {
            Mixer::Attention(config) => {
                Self::Attention(AttentionBlock::load(tensors, config, common, (layer, number), rope)?)
            }
            Mixer::ShortConv(config) => {
                Self::ShortConv(ShortConvBlock::load(tensors, config, common.0, layer, number)?)
            }
            Mixer::DeltaNet(config) => Self::DeltaNet(DeltaNetBlock::load(tensors, config, common, layer, number)?),
        })
    }

    /// The weights of the norm before it.
    pub(crate) fn norm(&self) -> &[f32] {
        match self {
            Self::Attention(block) => &block.norm,
            Self::ShortConv(block) => &block.norm,
            Self::DeltaNet(block) => &block.norm,
        }
    }

    pub(crate) fn run(
        &self,
        worker: &mut Worker<'_>,
        state: &RunState,
        pages: &HostPages,
        batch: CheckedBatch<'_>,
        next_norm: &[f32],
    ) {
        match self {
            Self::Attention(block) => block.run(worker, state, pages, batch, next_norm),
            Self::ShortConv(block) => block.run(worker, state, batch, next_norm),
            Self::DeltaNet(block) => block.run(worker, state, batch, next_norm),
        }
    }

    /// Returns the matrices that adapters may change.
    pub(crate) fn targets(&self, is_interleaved: bool) -> Vec<Target> {
        match self {
            Self::Attention(block) => block.targets(is_interleaved),
            Self::ShortConv(block) => block.targets(),
            Self::DeltaNet(block) => block.targets(),
        }
    }

    pub(crate) fn attention(&self) -> Option<&AttentionBlock> {
        match self {
            Self::Attention(block) => Some(block),
            _ => None,
        }
    }

    /// Returns the weights that take the normalized residual stream, and those that take the block's own result.
    pub(crate) fn weights(&self) -> [&Linear; 2] {
        match self {
            Self::Attention(block) => block.weights(),
            Self::ShortConv(block) => block.weights(),
            Self::DeltaNet(block) => block.weights(),
        }
    }
}
