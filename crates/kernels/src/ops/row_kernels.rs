//! Operations on rows by kernels from outside, such as those of a pack. Where one is used, phases that fuse it with a matmul are
//! taken apart: the row has to be whole before it is handed over.

use std::fmt::Debug;

use super::head_transform::{QkNorm, normalize as normalize_head};
use super::matrix::Span;
use super::rows::add_result;
use super::slices::rms_norm_with;
use super::{Activation, Activations, Attention, BatchRows, Matrix, RopeStyle, own_rows};
use crate::Worker;
use crate::threads::{Access, Part};

/// What may be computed outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOperation {
    RmsNorm,
    Rope,
    Gated(Activation),
}

impl RowOperation {
    pub const ALL: [Self; 4] =
        [Self::RmsNorm, Self::Rope, Self::Gated(Activation::Silu), Self::Gated(Activation::GeluTanh)];
}

/// Kernels from outside. Each worker of a pool calls them with its own index.
///
/// A kernel that fails returns `false` and leaves what it should have changed as it was; the row is then computed by the kernels
/// here, so that nothing depends on it but time.
pub trait RowKernels: Debug + Send + Sync {
    /// Whether an operation is computed here. Asked before each forward pass.
    fn has(&self, operation: RowOperation) -> bool;

    /// `out = x * weight / sqrt(mean(x^2) + epsilon)`.
    #[must_use]
    fn rms_norm(&self, worker: usize, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) -> bool;

    /// Rotates the first pairs of each head by these cosines and sines.
    #[must_use]
    fn rotate(
        &self,
        worker: usize,
        heads: &mut [f32],
        head_dim: usize,
        rotations: &[[f32; 2]],
        style: RopeStyle,
    ) -> bool;

    /// `gate = activation(gate) * up`.
    #[must_use]
    fn gated(&self, worker: usize, activation: Activation, up: &[f32], gate: &mut [f32]) -> bool;
}

/// `normalize` by kernels from outside.
pub fn normalize_by(
    worker: &Worker<'_>,
    kernels: &dyn RowKernels,
    x: &Matrix,
    rows: impl Into<BatchRows>,
    weight: &[f32],
    out: &Activations,
) {
    normalize_each(worker, kernels, x, rows.into(), |row| row, weight, out);
}

/// `normalize_rows` by kernels from outside.
pub fn normalize_rows_by(
    worker: &Worker<'_>,
    kernels: &dyn RowKernels,
    x: &Matrix,
    rows: &[usize],
    weight: &[f32],
    out: &Activations,
) {
    normalize_each(worker, kernels, x, rows.len().into(), |i| rows[i], weight, out);
}

fn normalize_each(
    worker: &Worker<'_>,
    kernels: &dyn RowKernels,
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
        normalize_row(worker, kernels, x.read_row(worker, source(row)), weight, out.epsilon(), &mut scratch.sums);
        // SAFETY: the row is this worker's.
        unsafe { out.put_divided(worker, rows, row, &scratch.sums) };
    }
}

/// `residual_norm` whose second norm is that of kernels from outside.
#[allow(clippy::too_many_arguments)]
pub fn residual_norm_by(
    worker: &Worker<'_>,
    kernels: &dyn RowKernels,
    y: &Matrix,
    post_norm: Option<(&[f32], f32)>,
    scale: f32,
    rows: BatchRows,
    x: &Matrix,
    next_norm: &[f32],
    out: &Activations,
) {
    assert!(y.cols == x.cols && out.cols() == x.cols && rows.count() <= x.rows.min(y.rows).min(out.rows()));
    let mut scratch = worker.scratch();
    scratch.sums.resize(x.cols);
    for row in own_rows(worker, rows.count()) {
        let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
        // SAFETY: the row is this worker's.
        let x = unsafe { x.own_span(worker, &part) };
        add_result(worker, y.read_row(worker, row), post_norm, scale, x, &mut scratch.sums);
        normalize_row(worker, kernels, x, next_norm, out.epsilon(), &mut scratch.sums);
        // SAFETY: the row is this worker's.
        unsafe { out.put_divided(worker, rows, row, &scratch.sums) };
    }
}

fn normalize_row(
    worker: &Worker<'_>,
    kernels: &dyn RowKernels,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    out: &mut [f32],
) {
    if !kernels.rms_norm(worker.index(), x, weight, epsilon, out) {
        rms_norm_with(worker.kernels(), x, weight, epsilon, out);
    }
}

impl Attention<'_> {
    /// Rotates all queries and keys by kernels from outside, after the norm of heads if there is one, so that they are left as they
    /// are from then on.
    pub fn rotated_by(mut self, worker: &mut Worker<'_>, kernels: &dyn RowKernels) -> Self {
        worker.begin(Part::Attention);
        let dim = self.kv_heads().dim;
        self.transform.check(dim);
        let queries = self.shape.heads * dim;
        let values = if self.is_reader { 0 } else { self.kv_heads().count * dim };
        let keys = self.qkv.cols - 2 * values..self.qkv.cols - values;
        for sequence in self.batch.sequences() {
            for row in own_rows(worker, sequence.rows.end).filter(|row| sequence.rows.contains(row)) {
                let part = Span { access: Access::WriteRows, row, cols: 0..self.qkv.cols };
                // SAFETY: the row is this worker's.
                let row_of_heads = unsafe { self.qkv.own_span(worker, &part) };
                let position = sequence.position(row);
                if let Some(QkNorm { query, key, epsilon }) = self.transform.norm {
                    let of_keys = row_of_heads[keys.clone()].chunks_exact_mut(dim);
                    of_keys.for_each(|head| normalize_head(worker, key, epsilon, head));
                    let of_queries = row_of_heads[..queries].chunks_exact_mut(dim);
                    of_queries.for_each(|head| normalize_head(worker, query, epsilon, head));
                }
                if keys.start == queries {
                    self.rotate_heads(worker, kernels, &mut row_of_heads[..keys.end], position);
                } else {
                    self.rotate_heads(worker, kernels, &mut row_of_heads[..queries], position);
                    self.rotate_heads(worker, kernels, &mut row_of_heads[keys.clone()], position);
                }
            }
        }
        worker.barrier();
        (self.transform.norm, self.transform.rope) = (None, None);
        self
    }

    fn rotate_heads(&self, worker: &Worker<'_>, kernels: &dyn RowKernels, heads: &mut [f32], position: usize) {
        let dim = self.kv_heads().dim;
        let Some(rope) = self.transform.rope else { return };
        if !kernels.rotate(worker.index(), heads, dim, rope.rotations(position), rope.style()) {
            heads.chunks_exact_mut(dim).for_each(|head| rope.rotate(head, position));
        }
    }
}
