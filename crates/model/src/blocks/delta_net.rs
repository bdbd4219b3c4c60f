//! Norm, projection, convolution, gated delta rule, projection: Qwen3.5's layers without attention.

use ruvllm_kernels::Worker;
use ruvllm_kernels::ops::{BatchRows, CausalConv, DeltaNet, Linear, matmul};
use ruvllm_runner::CheckedBatch;

use super::{Projection, linear};
use crate::RunState;
use crate::adapters::{Order, RowPick, Site, Target};
use crate::config::DeltaNetConfig;
use crate::error::LoadError;
use crate::load::Tensors;

#[derive(Debug)]
pub(crate) struct DeltaNetBlock {
    pub(crate) norm: Vec<f32>,
    /// Queries, keys and values; gates of the results; decays; betas. `[.., hidden]`
    input: Linear,
    /// Of queries, keys and values. `[taps, channels]`
    kernel: Vec<f32>,
    /// `[value heads]` each
    decay_scale: Vec<f32>,
    decay_bias: Vec<f32>,
    /// Of the results of a head. `[value_dim]`
    result_norm: Vec<f32>,
    epsilon: f32,
    /// `[hidden, value heads value_dim]`
    output: Projection,
    /// Its number among the recurrent layers.
    number: usize,
    layer: usize,
}

impl DeltaNetBlock {
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        config: &DeltaNetConfig,
        (hidden, epsilon): (usize, f32),
        layer: usize,
        number: usize,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let shape = config.shape;
        let (qkv, values) = (shape.qkv(), shape.value_heads * shape.value_dim);
        let input = vec![
            tensors.matrix(&name("attn_qkv.weight"), qkv, hidden)?,
            tensors.matrix(&name("attn_gate.weight"), values, hidden)?,
            tensors.matrix(&name("ssm_alpha.weight"), shape.value_heads, hidden)?,
            tensors.matrix(&name("ssm_beta.weight"), shape.value_heads, hidden)?,
        ];
        let output = tensors.matrix(&name("ssm_out.weight"), hidden, values)?;
        Ok(Self {
            norm: tensors.floats(&name("attn_norm.weight"), hidden)?,
            input: linear(layer, input, None)?,
            kernel: tensors.conv_kernel(&name("ssm_conv1d.weight"), config.taps, qkv)?,
            decay_scale: tensors.floats(&name("ssm_a"), shape.value_heads)?,
            decay_bias: tensors.floats(&name("ssm_dt.bias"), shape.value_heads)?,
            result_norm: tensors.floats(&name("ssm_norm.weight"), shape.value_dim)?,
            epsilon,
            output: Projection {
                weights: linear(layer, vec![output], None)?,
                post_norm: None,
                scale: 1.0,
                number: Site::MixerOutput.number(layer),
            },
            number,
            layer,
        })
    }

    pub(crate) fn run(&self, worker: &mut Worker<'_>, state: &RunState, batch: CheckedBatch<'_>, next_norm: &[f32]) {
        let recurrent = state.recurrent();
        let (states, layer, rows) = (&recurrent.states, self.number, BatchRows::of(&batch));
        let input = state.adapted(&self.input, Site::MixerInput.number(self.layer));
        matmul(worker, input, &state.normed, rows, &recurrent.input);
        worker.barrier();
        CausalConv { kernel: &self.kernel, batch, states, layer }.silu(worker, &recurrent.input);
        worker.barrier();
        let delta_net = DeltaNet {
            input: &recurrent.input,
            decay_scale: &self.decay_scale,
            decay_bias: &self.decay_bias,
            norm: &self.result_norm,
            epsilon: self.epsilon,
            batch,
            states,
            layer,
            out: &recurrent.output,
        };
        delta_net.run(worker);
        worker.barrier();
        self.output.run(worker, state, &recurrent.output, rows, next_norm);
    }

    /// Returns the matrices that adapters may change.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let target = |name, site, part, rows, cols, is_kept| Target {
            name,
            layer: self.layer,
            site,
            rows,
            cols,
            outputs: vec![(part, RowPick::Range(0..rows))],
            is_kept,
            order: Order::Unknown,
        };
        let (output, cols) = (&self.output.weights, self.input.cols());
        let inputs =
            ["attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"].into_iter().zip(self.input.part_rows()).enumerate();
        let inputs =
            inputs.map(|(part, (name, rows))| target(name, Site::MixerInput, part, rows, cols, name != "attn_gate"));
        inputs.chain([target("ssm_out", Site::MixerOutput, 0, output.rows(), output.cols(), false)]).collect()
    }

    pub(crate) fn weights(&self) -> [&Linear; 2] {
        [&self.input, &self.output.weights]
    }
}
