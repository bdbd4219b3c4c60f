//! The blocks that a layer is composed of. Each loads its own tensors and runs as phases of a forward pass.
//!
//! A block is given its input normalized and leaves the residual stream normalized for the block after it. Where nothing
//! stands between a projection and the residual stream, the two are one phase; otherwise they are taken one by one.

mod attention;
mod delta_net;
mod dense_and_experts;
mod experts;
mod feed_forward;
mod layer_input;
mod mixer;
mod short_conv;

use attention::AttentionBlock;
use delta_net::DeltaNetBlock;
pub(crate) use feed_forward::FeedForwardBlock;
pub(crate) use layer_input::{LayerInputBlock, LayerInputBuffers, LayerInputs};
pub(crate) use mixer::MixerBlock;
use short_conv::ShortConvBlock;

use ruvllm_kernels::ops::{
    Activations, BatchRows, Linear, RowOperation, matmul, matmul_residual, residual_norm, residual_norm_by,
};
use ruvllm_kernels::{PackedMatrix, Worker};

use crate::RunState;
use crate::error::LoadError;

/// The last step of a block: a projection whose result is added to the residual stream.
#[derive(Debug)]
pub(crate) struct Projection {
    weights: Linear,
    /// Norm of the result before it is added, with its epsilon.
    post_norm: Option<(Vec<f32>, f32)>,
    /// What the residual stream is multiplied by after that. Only 1 without a norm.
    scale: f32,
    /// The number of the weights in adapters.
    number: usize,
}

impl Projection {
    /// Adds the projection of `input` to the residual stream, and leaves that normalized with `next_norm`.
    fn run(&self, worker: &mut Worker<'_>, state: &RunState, input: &Activations, rows: BatchRows, next_norm: &[f32]) {
        let (x, normed) = (&state.x, &state.normed);
        let weights = state.adapted(&self.weights, self.number);
        let post_norm = self.post_norm.as_ref().map(|(weight, epsilon)| (&weight[..], *epsilon));
        let row_kernels = state.row_kernels_for(RowOperation::RmsNorm);
        if post_norm.is_none() && row_kernels.is_none() {
            matmul_residual(worker, weights, input, rows, x, next_norm, normed);
        } else {
            let projected = &state.projected;
            matmul(worker, weights, input, rows, projected);
            worker.barrier();
            match row_kernels {
                None => residual_norm(worker, projected, post_norm, self.scale, rows, x, next_norm, normed),
                Some(kernels) => {
                    residual_norm_by(worker, kernels, projected, post_norm, self.scale, rows, x, next_norm, normed);
                }
            }
        }
        worker.barrier();
    }
}

/// Stacks matrices of a layer.
pub(crate) fn linear(layer: usize, parts: Vec<PackedMatrix>, bias: Option<Vec<f32>>) -> Result<Linear, LoadError> {
    Linear::new(parts, bias).map_err(|source| LoadError::Linear { layer, source })
}
