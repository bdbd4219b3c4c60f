//! The gated delta rule: each head has a matrix that recalls values by keys, and each token changes it.

use ruvllm_runner::{CheckedBatch, SequenceRows};

use super::host_states::{DeltaShape, HostStates};
use super::matrix::Span;
use super::slices::rms_norm_with;
use super::{Activations, BatchRows, Matrix};
use crate::kernels::recurrent::DeltaRow;
use crate::threads::{Access, Worker};
use crate::weights::GROUP;

/// The maximum dimension of a head's keys and values; fixes the size of buffers.
pub const DELTA_DIM_MAX: usize = 256;

/// One layer's delta net.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet<'a> {
    /// Queries, keys and values behind their convolution, then gates of the results, then a decay and a beta for each value head
    /// before their activations.
    pub input: &'a Matrix,
    /// Of each value head: what its decay is multiplied by, and what is added to it before.
    pub decay_scale: &'a [f32],
    pub decay_bias: &'a [f32],
    /// Of the results of a head.
    pub norm: &'a [f32],
    pub epsilon: f32,
    pub batch: CheckedBatch<'a>,
    pub states: &'a HostStates,
    /// Its number among the recurrent layers.
    pub layer: usize,
    pub out: &'a Activations,
}

impl DeltaShape {
    /// Columns of queries, keys and values.
    pub fn qkv(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Columns of the input: with the gates, decays and betas.
    pub fn input(&self) -> usize {
        self.qkv() + self.value_heads * (self.value_dim + 2)
    }
}

impl DeltaNet<'_> {
    pub fn run(&self, worker: &Worker<'_>) {
        let shape = self.shape();
        assert!(self.input.cols == shape.input() && self.out.cols() == shape.value_heads * shape.value_dim);
        // Results must be whole groups of the next matmul's input.
        let span = if shape.value_dim.is_multiple_of(GROUP) { 1 } else { 2.min(shape.value_heads) };
        let parts = shape.value_heads.div_ceil(span);
        let sequences = self.batch.sequences();
        for unit in worker.units().take_while(|unit| *unit < sequences.len() * parts) {
            let first = unit % parts * span;
            self.heads(worker, &sequences[unit / parts], first..shape.value_heads.min(first + span));
        }
    }

    fn shape(&self) -> DeltaShape {
        self.states.shape().layers[self.layer].delta.expect("a layer with a delta net")
    }

    /// Runs all rows of a sequence through some heads.
    fn heads(&self, worker: &Worker<'_>, sequence: &SequenceRows, heads: std::ops::Range<usize>) {
        let shape = self.shape();
        let state = sequence.state.expect("checked");
        let (first_row, width) = (sequence.rows.start, heads.len() * shape.value_dim);
        let mut scratch = worker.scratch();
        let scratch = &mut *scratch;
        scratch.result.resize(sequence.rows.len() * width);
        for (index, head) in heads.clone().enumerate() {
            // SAFETY: each head of a sequence is one worker's unit.
            let mut own = unsafe { self.states.delta(worker, state.slot, self.layer, head) };
            if sequence.start == 0 {
                own.matrix.fill(0.0);
            } else {
                own.apply(worker, self.states.accepted(state.slot, sequence.start));
            }
            let certain = sequence.rows.len() - state.drafts;
            scratch.partial.resize(own.matrix.len());
            for row in sequence.rows.clone() {
                let number = row - first_row;
                let out = &mut scratch.result[number * width + index * shape.value_dim..][..shape.value_dim];
                if number < certain {
                    self.row(worker, row, head, own.matrix, out);
                    continue;
                }
                // Draft tokens change a copy.
                if number == certain {
                    scratch.partial.copy_from_slice(own.matrix);
                }
                let step = self.row(worker, row, head, &mut scratch.partial, out);
                own.note(number - certain, step.decay, &step.key[..shape.key_dim], &step.update[..shape.value_dim]);
            }
        }
        let rows = BatchRows::of(&self.batch);
        for row in sequence.rows.clone() {
            let cols = heads.start * shape.value_dim..heads.end * shape.value_dim;
            let part = Span { access: Access::WriteStates, row, cols };
            // SAFETY: the columns of these heads are this worker's, and whole groups.
            unsafe { self.out.put(worker, rows, &part, &scratch.result[(row - first_row) * width..][..width]) };
        }
    }

    /// One token in one head: changes `matrix`, and writes the normalized and gated result to `out`.
    fn row(&self, worker: &Worker<'_>, row: usize, head: usize, matrix: &mut [f32], out: &mut [f32]) -> Step {
        let shape = self.shape();
        let input = self.input.read_row(worker, row);
        let (qkv, rest) = input.split_at(shape.qkv());
        let (gates, rest) = rest.split_at(shape.value_heads * shape.value_dim);
        let (decays, betas) = rest.split_at(shape.value_heads);
        let (keys_len, key_head) = (shape.key_heads * shape.key_dim, head % shape.key_heads);
        let mut step = Step::default();
        let mut query = [0f32; DELTA_DIM_MAX];
        let (query, key) = (&mut query[..shape.key_dim], &mut step.key[..shape.key_dim]);
        let scale = 1.0 / (shape.key_dim as f32).sqrt();
        let kernels = worker.kernels();
        let raw = &qkv[key_head * shape.key_dim..];
        // SAFETY: the lengths are those of a key head, whole vectors.
        unsafe {
            (kernels.l2_normalize)(&raw[..shape.key_dim], scale, query);
            (kernels.l2_normalize)(&raw[keys_len..][..shape.key_dim], 1.0, key);
        }
        let raised = decays[head] + self.decay_bias[head];
        // ln(1 + e^x), which is x itself where e^x would overflow.
        let softplus = if raised > 20.0 { raised } else { raised.exp().ln_1p() };
        step.decay = (self.decay_scale[head] * softplus).exp();
        let given = DeltaRow {
            key,
            query,
            value: &qkv[2 * keys_len + head * shape.value_dim..][..shape.value_dim],
            beta: 1.0 / (1.0 + (-betas[head]).exp()),
            decay: step.decay,
        };
        let mut result = [0f32; DELTA_DIM_MAX];
        let result = &mut result[..shape.value_dim];
        let gate = &gates[head * shape.value_dim..][..shape.value_dim];
        // SAFETY: the lengths are those of a head, whole vectors.
        unsafe { (kernels.delta_step)(given, matrix, &mut step.update[..shape.value_dim], result) };
        let mut normed = [0f32; DELTA_DIM_MAX];
        let normed = &mut normed[..shape.value_dim];
        rms_norm_with(kernels, result, self.norm, self.epsilon, normed);
        out.copy_from_slice(gate);
        // SAFETY: both are as long as a head.
        unsafe { (kernels.swiglu)(normed, out) };
        step
    }
}

/// What a token did to the state of a head.
struct Step {
    decay: f32,
    key: [f32; DELTA_DIM_MAX],
    update: [f32; DELTA_DIM_MAX],
}

impl Default for Step {
    fn default() -> Self {
        Self { decay: 0.0, key: [0.0; DELTA_DIM_MAX], update: [0.0; DELTA_DIM_MAX] }
    }
}
