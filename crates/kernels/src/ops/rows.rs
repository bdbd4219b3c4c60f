//! The vectors of tokens, the norm before the first layer, what follows a matmul whose result is normalized before it is
//! added (otherwise the norm is part of the matmul that comes before it), and the soft cap of logits.

use std::f32::consts::FRAC_1_SQRT_2;

use super::matrix::Span;
use super::slices::rms_norm_with;
use super::{Activation, Activations, BatchRows, Matrix, own_rows};
use crate::Worker;
use crate::threads::{Access, Part, Scratch};

/// Writes the first `rows` rows of `out`, each worker its share: `embed` writes the vector of one.
pub fn embed_rows(worker: &Worker<'_>, rows: usize, out: &Matrix, embed: impl Fn(usize, &mut [f32])) {
    worker.begin(Part::Embed);
    for row in own_rows(worker, rows) {
        let part = Span { access: Access::WriteRows, row, cols: 0..out.cols };
        // SAFETY: the row is this worker's.
        embed(row, unsafe { out.own_span(worker, &part) });
    }
}

/// `out[t]` = the norm of `x[t]` with weights `weight`, for the first rows `t`.
pub fn normalize(worker: &Worker<'_>, x: &Matrix, rows: impl Into<BatchRows>, weight: &[f32], out: &Activations) {
    let rows = rows.into();
    normalize_each(worker, x, rows, |row| row, weight, out);
}

/// `out[i]` = the norm of `x[rows[i]]` with weights `weight`.
pub fn normalize_rows(worker: &Worker<'_>, x: &Matrix, rows: &[usize], weight: &[f32], out: &Activations) {
    normalize_each(worker, x, rows.len().into(), |i| rows[i], weight, out);
}

fn normalize_each(
    worker: &Worker<'_>,
    x: &Matrix,
    rows: BatchRows,
    source: impl Fn(usize) -> usize,
    weight: &[f32],
    out: &Activations,
) {
    assert!(out.cols() == x.cols && rows.count() <= out.rows());
    let mut scratch = worker.scratch();
    scratch.sums.resize(x.cols);
    for row in own_rows(worker, rows.count()) {
        let from = x.read_row(worker, source(row));
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's.
        unsafe { out.put_normalized(worker, rows, &part, from, weight, &mut scratch.sums) };
    }
}

/// `out[t]` = `x[t]` for the first `rows` rows `t`.
pub fn put_rows(worker: &Worker<'_>, x: &Matrix, rows: BatchRows, out: &Activations) {
    assert!(out.cols() == x.cols && rows.count() <= x.rows.min(out.rows()));
    for row in own_rows(worker, rows.count()) {
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's.
        unsafe { out.put(worker, rows, &part, x.read_row(worker, row)) };
    }
}

/// `out[t] = activation(gate[t]) * up[t]` for the first `rows` rows `t`, where `up[t]` is the part of its row that begins at
/// `first`.
pub fn gate_rows(
    worker: &Worker<'_>,
    gate: &Matrix,
    activation: Activation,
    (up, first): (&Matrix, usize),
    rows: BatchRows,
    out: &Activations,
) {
    assert!(out.cols() == gate.cols && first + gate.cols <= up.cols);
    assert!(rows.count() <= gate.rows.min(up.rows).min(out.rows()));
    let mut scratch = worker.scratch();
    scratch.sums.resize(gate.cols);
    for row in own_rows(worker, rows.count()) {
        scratch.sums.copy_from_slice(gate.read_row(worker, row));
        let up = &up.read_row(worker, row)[first..first + gate.cols];
        let part = Span { access: Access::WriteRows, row, cols: 0..gate.cols };
        // SAFETY: lengths match; the row is this worker's.
        unsafe {
            (worker.kernels().gated(activation))(up, &mut scratch.sums);
            out.put(worker, rows, &part, &scratch.sums);
        }
    }
}

/// `x[t] = (norm(x[t]) + factor * y[t]) / sqrt(2)` for the first `rows` rows `t`. Each run of columns as long as the weights of
/// `norm` is normalized by itself, with its epsilon.
pub fn mix_rows(
    worker: &Worker<'_>,
    x: &Matrix,
    (weight, epsilon): (&[f32], f32),
    y: &Matrix,
    factor: f32,
    rows: usize,
) {
    assert!(x.cols == y.cols && x.cols.is_multiple_of(weight.len()) && rows <= x.rows.min(y.rows));
    let mut scratch = worker.scratch();
    scratch.sums.resize(weight.len());
    for row in own_rows(worker, rows) {
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's.
        let x = unsafe { x.own_span(worker, &part) };
        for (x, y) in x.chunks_exact_mut(weight.len()).zip(y.read_row(worker, row).chunks_exact(weight.len())) {
            rms_norm_with(worker.kernels(), x, weight, epsilon, &mut scratch.sums);
            for ((x, normed), y) in x.iter_mut().zip(&*scratch.sums).zip(y) {
                *x = (normed + factor * y) * FRAC_1_SQRT_2;
            }
        }
    }
}

/// `x[t] = norm(x[t]) + norm(y[t])`, each with weights of its own and one epsilon, for the first `rows` rows `t`.
pub fn add_norms(
    worker: &Worker<'_>,
    (x, x_weight): (&Matrix, &[f32]),
    (y, y_weight): (&Matrix, &[f32]),
    epsilon: f32,
    rows: usize,
) {
    assert!(x.cols == y.cols && rows <= x.rows.min(y.rows));
    let mut scratch = worker.scratch();
    let Scratch { sums, result, .. } = &mut *scratch;
    sums.resize(x.cols);
    result.resize(x.cols);
    for row in own_rows(worker, rows) {
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's.
        let x = unsafe { x.own_span(worker, &part) };
        rms_norm_with(worker.kernels(), x, x_weight, epsilon, sums);
        rms_norm_with(worker.kernels(), y.read_row(worker, row), y_weight, epsilon, result);
        x.iter_mut().zip(&**sums).zip(&**result).for_each(|((x, one), other)| *x = one + other);
    }
}

/// `x[t] = scale * (x[t] + norm(y[t]))` with the weights and epsilon of `post_norm`, and the result as the input of a layer
/// with norm weights `next_norm`, for the first `rows` rows `t`. What `matmul_residual` does at once where nothing is between
/// the matmul and the addition.
#[allow(clippy::too_many_arguments)]
pub fn residual_norm(
    worker: &Worker<'_>,
    y: &Matrix,
    post_norm: Option<(&[f32], f32)>,
    scale: f32,
    rows: impl Into<BatchRows>,
    x: &Matrix,
    next_norm: &[f32],
    out: &Activations,
) {
    let rows = rows.into();
    assert!(y.cols == x.cols && out.cols() == x.cols && rows.count() <= x.rows.min(y.rows).min(out.rows()));
    let mut scratch = worker.scratch();
    scratch.sums.resize(x.cols);
    for row in own_rows(worker, rows.count()) {
        let y = y.read_row(worker, row);
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's.
        unsafe {
            let x = x.own_span(worker, &part);
            add_result(worker, y, post_norm, scale, x, &mut scratch.sums);
            out.put_normalized(worker, rows, &part, x, next_norm, &mut scratch.sums);
        }
    }
}

/// `x = scale * (x + norm(y))`, or `scale * (x + y)`. `space` is as long as `x`.
pub(super) fn add_result(
    worker: &Worker<'_>,
    y: &[f32],
    post_norm: Option<(&[f32], f32)>,
    scale: f32,
    x: &mut [f32],
    space: &mut [f32],
) {
    assert!(y.len() == x.len() && space.len() == x.len());
    let add = worker.kernels().add;
    match post_norm {
        Some((weight, epsilon)) => {
            rms_norm_with(worker.kernels(), y, weight, epsilon, space);
            // SAFETY: the slices have one length.
            unsafe { add(x, space) };
        }
        // SAFETY: the slices have one length.
        None => unsafe { add(x, y) },
    }
    if scale != 1.0 {
        x.iter_mut().for_each(|x| *x *= scale);
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
