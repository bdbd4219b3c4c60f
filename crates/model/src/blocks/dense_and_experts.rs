//! A dense feed-forward block and experts beside each other: both take the same residual stream through norms of their own, and
//! what is added is the norm of their sum.

use ruvllm_kernels::Worker;
use ruvllm_kernels::ops::{
    Activation, BatchRows, Experts, Linear, add_norms, matmul, matmul_gated, normalize, residual_norm,
};

use super::experts::load_experts;
use super::linear;
use crate::RunState;
use crate::config::{ExpertsConfig, FeedForwardConfig};
use crate::error::LoadError;
use crate::load::Tensors;

#[derive(Debug)]
pub(crate) struct DenseAndExperts {
    /// `[2 width, hidden]`
    gate_up: Linear,
    activation: Activation,
    /// `[hidden, width]`
    down: Linear,
    experts: Experts,
    /// Norms of the input: of the router and of the experts.
    router_norm: Vec<f32>,
    experts_norm: Vec<f32>,
    /// Norms of the results: of the dense block, of the experts, and of their sum.
    dense_post_norm: Vec<f32>,
    experts_post_norm: Vec<f32>,
    post_norm: Vec<f32>,
    epsilon: f32,
    /// What the residual stream is multiplied by in the end.
    scale: f32,
}

impl DenseAndExperts {
    pub(super) fn load(
        tensors: &mut Tensors<'_>,
        (dense, experts): (&FeedForwardConfig, &ExpertsConfig),
        (hidden, epsilon): (usize, f32),
        layer: usize,
        scale: f32,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let gate_up = vec![
            tensors.matrix(&name("ffn_gate.weight"), dense.width, hidden)?,
            tensors.matrix(&name("ffn_up.weight"), dense.width, hidden)?,
        ];
        let down = tensors.matrix(&name("ffn_down.weight"), hidden, dense.width)?;
        let mut router_norm = tensors.floats(&name("ffn_gate_inp.scale"), hidden)?;
        router_norm.iter_mut().for_each(|weight| *weight /= (hidden as f32).sqrt());
        Ok(Self {
            gate_up: linear(layer, gate_up, None)?,
            activation: dense.activation,
            down: linear(layer, vec![down], None)?,
            experts: load_experts(tensors, experts, hidden, layer)?,
            router_norm,
            experts_norm: tensors.floats(&name("pre_ffw_norm_2.weight"), hidden)?,
            dense_post_norm: tensors.floats(&name("post_ffw_norm_1.weight"), hidden)?,
            experts_post_norm: tensors.floats(&name("post_ffw_norm_2.weight"), hidden)?,
            post_norm: tensors.floats(&name("post_ffw_norm.weight"), hidden)?,
            epsilon,
            scale,
        })
    }

    pub(super) fn run(&self, worker: &mut Worker<'_>, state: &RunState, rows: BatchRows, next_norm: &[f32]) {
        let gated = state.gated.of(self.down.cols());
        let routed = state.routed.as_ref().expect("made for models with such blocks");
        let buffers = state.experts.as_ref().expect("made for models with experts");
        matmul_gated(worker, &self.gate_up, self.activation, &state.normed, rows, gated);
        worker.barrier();
        matmul(worker, &self.down, gated, rows, &state.projected);
        normalize(worker, &state.x, rows, &self.router_norm, routed);
        normalize(worker, &state.x, rows, &self.experts_norm, &state.normed);
        worker.barrier();
        self.experts.run_apart(worker, routed, &state.normed, rows.count(), buffers, &state.expert_results);
        worker.barrier();
        let dense = (&state.projected, &self.dense_post_norm[..]);
        let experts = (&state.expert_results, &self.experts_post_norm[..]);
        add_norms(worker, dense, experts, self.epsilon, rows.count());
        worker.barrier();
        let post_norm = Some((&self.post_norm[..], self.epsilon));
        residual_norm(worker, &state.projected, post_norm, self.scale, rows, &state.x, next_norm, &state.normed);
        worker.barrier();
    }

    pub(super) fn experts(&self) -> &Experts {
        &self.experts
    }

    /// Returns the weights that take the normalized residual stream; the router takes it in a buffer of its own.
    pub(super) fn takes_normed(&self) -> Vec<&Linear> {
        [&self.gate_up].into_iter().chain(&self.experts.gate_up).collect()
    }

    /// Returns the weights that take the gated result of the dense block.
    pub(super) fn takes_gated(&self) -> &Linear {
        &self.down
    }
}
