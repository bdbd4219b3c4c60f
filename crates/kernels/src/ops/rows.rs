//! The norm before the first layer, what follows a matmul whose result is normalized before it is added (otherwise the norm
//! is part of the matmul that comes before it), and the soft cap of logits.

use super::matrix::Span;
use super::slices::rms_norm_with;
use super::{Activations, Matrix, own_rows};
use crate::Worker;
use crate::threads::Access;

/// `out[i]` = the norm of `x[rows[i]]` with weights `weight`.
pub fn normalize(worker: &Worker<'_>, x: &Matrix, rows: &[usize], weight: &[f32], out: &Activations) {
    assert!(out.cols() == x.cols && rows.len() <= out.rows());
    let mut scratch = worker.scratch();
    scratch.sums.resize(x.cols);
    for i in own_rows(worker, rows.len()) {
        let from = x.read_row(worker, rows[i]);
        let part = Span { access: Access::WriteRows, row: i, cols: 0..x.cols };
        // SAFETY: `i` is one of this worker's rows.
        unsafe { out.put_normalized(worker, &part, from, weight, &mut scratch.sums) };
    }
}

/// `x[t] += norm(y[t])` with the weights and epsilon of `post_norm`, and the result as the input of a layer with norm weights
/// `next_norm`, for the first `rows` rows `t`. What `matmul_residual` does at once where nothing is between the matmul and
/// the addition.
pub fn residual_norm(
    worker: &Worker<'_>,
    y: &Matrix,
    post_norm: Option<(&[f32], f32)>,
    rows: usize,
    x: &Matrix,
    next_norm: &[f32],
    out: &Activations,
) {
    assert!(y.cols == x.cols && out.cols() == x.cols && rows <= x.rows.min(y.rows).min(out.rows()));
    let mut scratch = worker.scratch();
    scratch.sums.resize(x.cols);
    for row in own_rows(worker, rows) {
        let y = y.read_row(worker, row);
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's, and the slices are as long as it.
        unsafe {
            let x = x.own_span(worker, &part);
            match post_norm {
                Some((weight, epsilon)) => {
                    rms_norm_with(worker.kernels(), y, weight, epsilon, &mut scratch.sums);
                    (worker.kernels().add)(x, &scratch.sums);
                }
                None => (worker.kernels().add)(x, y),
            }
            out.put_normalized(worker, &part, x, next_norm, &mut scratch.sums);
        }
    }
}

/// `x[t] += y[t] / (1 + exp(-gate[t]))` for the first `rows` rows `t`; a row of `gate` is one number.
pub fn add_gated(worker: &Worker<'_>, gate: &Matrix, y: &Matrix, rows: usize, x: &Matrix) {
    assert!(gate.cols == 1 && y.cols == x.cols && rows <= x.rows.min(y.rows).min(gate.rows));
    for row in own_rows(worker, rows) {
        let factor = 1.0 / (1.0 + (-gate.read_row(worker, row)[0]).exp());
        let y = y.read_row(worker, row);
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's.
        let x = unsafe { x.own_span(worker, &part) };
        x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
    }
}

/// `x[t] = cap * tanh(x[t] / cap)` for the first `rows` rows `t`.
pub fn softcap(worker: &Worker<'_>, cap: f32, rows: usize, x: &Matrix) {
    for row in own_rows(worker, rows) {
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's.
        unsafe { (worker.kernels().softcap)(cap, x.own_span(worker, &part)) };
    }
}
