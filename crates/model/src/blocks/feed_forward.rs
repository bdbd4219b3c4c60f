//! Norm, gate and up, activation, down.

use ruvllm_kernels::Worker;
use ruvllm_kernels::ops::{Activation, Linear, matmul_gated};

use super::{Projection, linear};
use crate::RunState;
use crate::config::FeedForwardConfig;
use crate::error::LoadError;
use crate::load::Tensors;

#[derive(Debug)]
pub(crate) struct FeedForwardBlock {
    pub(crate) norm: Vec<f32>,
    /// `[2 width, hidden]`
    gate_up: Linear,
    activation: Activation,
    /// `[hidden, width]`
    down: Projection,
}

impl FeedForwardBlock {
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        config: &FeedForwardConfig,
        (hidden, epsilon): (usize, f32),
        layer: usize,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let norm = tensors.floats(&name("ffn_norm.weight"), hidden)?;
        let gate_up = vec![
            tensors.matrix(&name("ffn_gate.weight"), config.width, hidden)?,
            tensors.matrix(&name("ffn_up.weight"), config.width, hidden)?,
        ];
        let down = tensors.matrix(&name("ffn_down.weight"), hidden, config.width)?;
        let mut post_norm = None;
        if config.post_norm {
            post_norm = Some((tensors.floats(&name("post_ffw_norm.weight"), hidden)?, epsilon));
        }
        Ok(Self {
            norm,
            gate_up: linear(layer, gate_up, None)?,
            activation: config.activation,
            down: Projection { weights: linear(layer, vec![down], None)?, post_norm },
        })
    }

    pub(crate) fn run(&self, worker: &mut Worker<'_>, state: &RunState, rows: usize, next_norm: &[f32]) {
        matmul_gated(worker, &self.gate_up, self.activation, &state.normed, rows, &state.gated);
        worker.barrier();
        self.down.run(worker, state, &state.gated, rows, next_norm);
    }

    /// Returns the weights that take the normalized residual stream, and those that take the block's own result.
    pub(crate) fn weights(&self) -> [&Linear; 2] {
        [&self.gate_up, &self.down.weights]
    }
}
