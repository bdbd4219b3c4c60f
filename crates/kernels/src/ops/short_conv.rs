//! Convolutions over the last tokens of a sequence, each channel by itself.

use ruvllm_runner::{CheckedBatch, SequenceRows};

use super::host_states::{ConvState, HostStates, TAPS_MAX};
use super::matrix::Span;
use super::{Activations, BatchRows, Matrix};
use crate::threads::{Access, Worker};

/// Channels of a unit of work.
const UNIT_CHANNELS: usize = 512;

/// The convolution of one recurrent layer.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv<'a> {
    /// `[taps, channels]`; the last tap is that of the newest token.
    pub kernel: &'a [f32],
    pub batch: CheckedBatch<'a>,
    pub states: &'a HostStates,
    /// Its number among the recurrent layers.
    pub layer: usize,
}

impl CausalConv<'_> {
    /// `x = silu(convolution of x)` in the first channels of each row.
    pub fn silu(&self, worker: &Worker<'_>, x: &Matrix) {
        self.units(worker, |sequence, state, cols| {
            for row in sequence.rows.clone() {
                let position = sequence.position(row);
                let part = Span { access: Access::WriteStates, row, cols: cols.clone() };
                // SAFETY: each channel of a sequence is one worker's unit.
                let x = unsafe { x.own_span(worker, &part) };
                state.at_mut(position).copy_from_slice(x);
                self.row(worker, state, position, cols.start, true, x);
            }
        });
    }

    /// Writes `c * convolution of (b * x)` to `out`, where a row of `bcx` is the three of them.
    pub fn gated(&self, worker: &Worker<'_>, bcx: &Matrix, out: &Activations) {
        let channels = out.cols();
        assert_eq!(bcx.cols, 3 * channels);
        self.units(worker, |sequence, state, cols| {
            let mut space = [0f32; UNIT_CHANNELS];
            let space = &mut space[..cols.len()];
            for row in sequence.rows.clone() {
                let position = sequence.position(row);
                let [b, c, x] = [0, 1, 2].map(|part| &bcx.read_row(worker, row)[part * channels..][cols.clone()]);
                for ((to, b), x) in state.at_mut(position).iter_mut().zip(b).zip(x) {
                    *to = b * x;
                }
                self.row(worker, state, position, cols.start, false, space);
                space.iter_mut().zip(c).for_each(|(y, c)| *y *= c);
                let part = Span { access: Access::WriteStates, row, cols: cols.clone() };
                // SAFETY: each channel of a sequence is one worker's unit; these are whole groups.
                unsafe { out.put(worker, BatchRows::of(&self.batch), &part, space) };
            }
        });
    }

    /// Hands the channels of each sequence to workers, in parts.
    fn units(&self, worker: &Worker<'_>, mut each: impl FnMut(&SequenceRows, &mut ConvState, std::ops::Range<usize>)) {
        let shape = self.states.shape().layers[self.layer];
        assert_eq!(self.kernel.len(), shape.taps * shape.channels);
        let parts = shape.channels.div_ceil(UNIT_CHANNELS);
        let sequences = self.batch.sequences();
        for unit in worker.units().take_while(|unit| *unit < sequences.len() * parts) {
            let (sequence, part) = (&sequences[unit / parts], unit % parts);
            let cols = part * UNIT_CHANNELS..shape.channels.min((part + 1) * UNIT_CHANNELS);
            let slot = sequence.state.expect("checked").slot;
            // SAFETY: each channel of a sequence is one worker's unit.
            let mut state = unsafe { self.states.conv(worker, slot, self.layer, cols.clone()) };
            each(sequence, &mut state, cols);
        }
    }

    /// The convolution at a position, of channels from `first` on.
    fn row(
        &self,
        worker: &Worker<'_>,
        state: &ConvState,
        position: usize,
        first: usize,
        is_silu: bool,
        out: &mut [f32],
    ) {
        let shape = self.states.shape().layers[self.layer];
        let (mut kernel, mut inputs) = ([&[][..]; TAPS_MAX], [&[][..]; TAPS_MAX]);
        let mut taps = 0;
        // Before the first token there is nothing.
        for tap in shape.taps.saturating_sub(position + 1)..shape.taps {
            kernel[taps] = &self.kernel[tap * shape.channels + first..][..out.len()];
            inputs[taps] = state.at(position + tap + 1 - shape.taps);
            taps += 1;
        }
        // SAFETY: all are as long as `out`, whole vectors, as `StateShape` was checked for.
        unsafe { (worker.kernels().causal_conv)(&kernel[..taps], &inputs[..taps], is_silu, out) };
    }
}
