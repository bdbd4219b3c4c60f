//! Operations that work row by row: norms, gated activation, rounding to 8 bits.

use super::own_rows;
use super::{Activations, Matrix};
use crate::Worker;

/// `out[i] = rms_norm(x[rows[i]]) * weight`, as floats and rounded.
pub fn rms_norm(worker: &Worker<'_>, x: &Matrix, rows: &[usize], weight: &[f32], epsilon: f32, out: &Activations) {
    assert!(weight.len() == x.cols && out.cols() == x.cols);
    for i in own_rows(worker, rows.len()) {
        let from = x.read_row(worker, rows[i]);
        // SAFETY: `i` is one of this worker's rows and the view is dropped at the end of the round; lengths match.
        unsafe {
            let to = out.floats.own_row_mut(worker, i);
            (worker.kernels().rms_norm)(from, weight, epsilon, to);
            out.quantize_own_row(worker, i, to);
        }
    }
}

/// `out = silu(gate) * up`, where a row of `gate_up` holds both, one after the other.
pub fn swiglu(worker: &Worker<'_>, gate_up: &Matrix, rows: usize, out: &Activations) {
    assert_eq!(gate_up.cols, out.cols() * 2);
    for i in own_rows(worker, rows) {
        let (gate, up) = gate_up.read_row(worker, i).split_at(out.cols());
        // SAFETY: `i` is one of this worker's rows and the view is dropped at the end of the round; lengths match.
        unsafe {
            let to = out.floats.own_row_mut(worker, i);
            (worker.kernels().swiglu)(gate, up, to);
            out.quantize_own_row(worker, i, to);
        }
    }
}

/// Rounds the floats of `rows` rows, written in an earlier phase.
pub fn quantize(worker: &Worker<'_>, rows: usize, activations: &Activations) {
    for i in own_rows(worker, rows) {
        let floats = activations.floats.read_row(worker, i);
        // SAFETY: `i` is one of this worker's rows.
        unsafe { activations.quantize_own_row(worker, i, floats) };
    }
}
