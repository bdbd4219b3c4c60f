//! What each token brings for each layer beside the residual stream: a vector of its own, mixed with a projection of its
//! embedding. A layer ends with adding what a gate lets through of it.

use ruvllm_kernels::ops::{
    Activation, Activations, BatchRows, Linear, Matrix, embed_rows, gate_rows, matmul, mix_rows, put_rows,
    residual_norm,
};
use ruvllm_kernels::{PackedMatrix, Pool, Worker};
use ruvllm_runner::TokenId;

use super::linear;
use crate::RunState;
use crate::config::Config;
use crate::error::LoadError;
use crate::load::Tensors;
use crate::run_state::inputs_of;

/// Where the inputs of all layers come from.
#[derive(Debug)]
pub(crate) struct LayerInputs {
    /// `[vocabulary, layers width]`
    tokens: PackedMatrix,
    /// `[layers width, hidden]`
    projection: Linear,
    /// Of the projection for one layer. `[width]`
    norm: Vec<f32>,
    epsilon: f32,
}

/// What a layer does with its input.
#[derive(Debug)]
pub(crate) struct LayerInputBlock {
    /// `[width, hidden]`
    gate: Linear,
    /// `[hidden, width]`
    projection: Linear,
    post_norm: Vec<f32>,
    epsilon: f32,
    /// What the residual stream is multiplied by in the end.
    scale: f32,
    /// Where its part of the inputs begins.
    first: usize,
}

/// Buffers of a forward pass.
#[derive(Debug)]
pub(crate) struct LayerInputBuffers {
    /// The residual stream as it is. `[rows, hidden]`
    stream: Activations,
    /// The tokens' own vectors. `[rows, layers width]`
    tokens: Matrix,
    /// `[rows, layers width]`
    inputs: Matrix,
    /// `[rows, width]`
    gate: Matrix,
    gated: Activations,
}

impl LayerInputs {
    pub(crate) fn load(tensors: &mut Tensors<'_>, config: &Config, width: usize) -> Result<Self, LoadError> {
        let (layers, hidden) = (config.layers.len(), config.hidden);
        let projection = tensors.matrix("per_layer_model_proj.weight", layers * width, hidden)?;
        Ok(Self {
            tokens: tensors.matrix("per_layer_token_embd.weight", config.vocabulary, layers * width)?,
            projection: linear(layers, vec![projection], None)?,
            norm: tensors.floats("per_layer_proj_norm.weight", width)?,
            // The projection is divided by the root of `hidden` first, which the norm undoes.
            epsilon: config.norm_epsilon * hidden as f32,
        })
    }

    /// Looks up the tokens' own vectors for all layers.
    pub(crate) fn embed(&self, worker: &Worker<'_>, state: &RunState, tokens: &[TokenId]) {
        let own = &state.layer_inputs().tokens;
        embed_rows(worker, tokens.len(), own, |row, out| self.tokens.row(tokens[row] as usize, out));
    }

    /// Makes the inputs of all layers of the embeddings in the residual stream.
    pub(crate) fn run(&self, worker: &mut Worker<'_>, state: &RunState, rows: BatchRows) {
        let buffers = state.layer_inputs();
        put_rows(worker, &state.x, rows, &buffers.stream);
        worker.barrier();
        matmul(worker, &self.projection, &buffers.stream, rows, &buffers.inputs);
        worker.barrier();
        let factor = (self.norm.len() as f32).sqrt();
        mix_rows(worker, &buffers.inputs, (&self.norm, self.epsilon), &buffers.tokens, factor, rows.count());
        worker.barrier();
    }

    pub(crate) fn projection(&self) -> &Linear {
        &self.projection
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tokens.bytes() + self.projection.bytes()
    }

    /// Allocates buffers for batches of up to `rows` rows.
    pub(crate) fn buffers(
        &self,
        pool: &Pool,
        rows: usize,
        has_fast_rows: bool,
        blocks: &[&LayerInputBlock],
    ) -> LayerInputBuffers {
        let (all, width) = (self.projection.rows(), self.norm.len());
        let takes_stream = blocks.iter().map(|block| &block.gate).chain([&self.projection]);
        LayerInputBuffers {
            stream: inputs_of(pool, rows, has_fast_rows, takes_stream),
            tokens: Matrix::new(pool, rows, all),
            inputs: Matrix::new(pool, rows, all),
            gate: Matrix::new(pool, rows, width),
            gated: inputs_of(pool, rows, has_fast_rows, blocks.iter().map(|block| &block.projection)),
        }
    }
}

impl LayerInputBlock {
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        width: usize,
        (hidden, epsilon): (usize, f32),
        layer: usize,
        scale: f32,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let gate = tensors.matrix(&name("inp_gate.weight"), width, hidden)?;
        let projection = tensors.matrix(&name("proj.weight"), hidden, width)?;
        Ok(Self {
            gate: linear(layer, vec![gate], None)?,
            projection: linear(layer, vec![projection], None)?,
            post_norm: tensors.floats(&name("post_norm.weight"), hidden)?,
            epsilon,
            scale,
            first: layer * width,
        })
    }

    pub(crate) fn run(&self, worker: &mut Worker<'_>, state: &RunState, rows: BatchRows, next_norm: &[f32]) {
        let LayerInputBuffers { stream, inputs, gate, gated, .. } = state.layer_inputs();
        put_rows(worker, &state.x, rows, stream);
        worker.barrier();
        matmul(worker, &self.gate, stream, rows, gate);
        worker.barrier();
        gate_rows(worker, gate, Activation::GeluTanh, (inputs, self.first), rows, gated);
        worker.barrier();
        matmul(worker, &self.projection, gated, rows, &state.projected);
        worker.barrier();
        let post_norm = Some((&self.post_norm[..], self.epsilon));
        residual_norm(worker, &state.projected, post_norm, self.scale, rows, &state.x, next_norm, &state.normed);
        worker.barrier();
    }

    pub(crate) fn weights(&self) -> [&Linear; 2] {
        [&self.gate, &self.projection]
    }
}
