//! Norm, projection, a gated convolution over the last tokens, projection: LFM2's layers without attention.

use ruvllm_kernels::Worker;
use ruvllm_kernels::ops::{BatchRows, CausalConv, Linear, matmul};
use ruvllm_runner::CheckedBatch;

use super::{Projection, linear};
use crate::RunState;
use crate::adapters::{Order, RowPick, Site, Target};
use crate::config::ShortConvConfig;
use crate::error::LoadError;
use crate::load::Tensors;

#[derive(Debug)]
pub(crate) struct ShortConvBlock {
    pub(crate) norm: Vec<f32>,
    /// Gate of the input, gate of the result, input. `[3 hidden, hidden]`
    input: Linear,
    /// `[taps, hidden]`
    kernel: Vec<f32>,
    /// `[hidden, hidden]`
    output: Projection,
    /// Its number among the recurrent layers.
    number: usize,
    layer: usize,
}

impl ShortConvBlock {
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        config: &ShortConvConfig,
        hidden: usize,
        layer: usize,
        number: usize,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let input = tensors.matrix(&name("shortconv.in_proj.weight"), 3 * hidden, hidden)?;
        let output = tensors.matrix(&name("shortconv.out_proj.weight"), hidden, hidden)?;
        Ok(Self {
            norm: tensors.floats(&name("attn_norm.weight"), hidden)?,
            input: linear(layer, vec![input], None)?,
            kernel: tensors.conv_kernel(&name("shortconv.conv.weight"), config.taps, hidden)?,
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
        let (recurrent, rows) = (state.recurrent(), BatchRows::of(&batch));
        let input = state.adapted(&self.input, Site::MixerInput.number(self.layer));
        matmul(worker, input, &state.normed, rows, &recurrent.input);
        worker.barrier();
        let conv = CausalConv { kernel: &self.kernel, batch, states: &recurrent.states, layer: self.number };
        conv.gated(worker, &recurrent.input, &recurrent.output);
        worker.barrier();
        self.output.run(worker, state, &recurrent.output, rows, next_norm);
    }

    /// Returns the matrices that adapters may change.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let target = |name, site, weights: &Linear, is_kept| Target {
            name,
            layer: self.layer,
            site,
            rows: weights.rows(),
            cols: weights.cols(),
            outputs: vec![(0, RowPick::Range(0..weights.rows()))],
            is_kept,
            order: Order::Same,
        };
        vec![
            target("shortconv.in_proj", Site::MixerInput, &self.input, true),
            target("shortconv.out_proj", Site::MixerOutput, &self.output.weights, false),
        ]
    }

    pub(crate) fn weights(&self) -> [&Linear; 2] {
        [&self.input, &self.output.weights]
    }
}
