//! The operations of a layer on slices of one row: what the fused phases of a forward pass do on the way, one at a time.
//! `crate::reference` has each of them in plain code.

use crate::KernelSet;
use crate::kernels::Table;
use crate::kernels::rows::WeightedRows;
use crate::lanes::LANES;
use crate::weights::GROUP;

/// What the gate of a feed-forward block goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`: SwiGLU.
    Silu,
    /// GELU, approximated by a hyperbolic tangent: GeGLU.
    GeluTanh,
    /// `x / (1 + exp(-1.702 x))` of a gate of at most 7, times 1 more than what it gates, which is between -7 and 7: gpt-oss.
    SwigluOai,
}

/// `out = x * weight / sqrt(mean(x^2) + epsilon)`.
pub fn rms_norm(kernels: KernelSet, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    rms_norm_with(kernels.table(), x, weight, epsilon, out);
}

pub(crate) fn rms_norm_with(table: &Table, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    /// Elements that are taken at once, so that nothing is allocated.
    const BLOCK: usize = 64 * GROUP;
    let mut sum = 0.0;
    for start in (0..x.len()).step_by(BLOCK) {
        let end = x.len().min(start + BLOCK);
        let mut squares = [0f32; BLOCK / GROUP];
        let squares = &mut squares[..(end - start).div_ceil(GROUP)];
        // SAFETY: the slices have one length, and `squares` a number for each group.
        unsafe { (table.weigh)(&x[start..end], &weight[start..end], &mut out[start..end], squares) };
        // SAFETY: any slice will do.
        sum += unsafe { (table.sum)(squares) };
    }
    let factor = 1.0 / (sum / x.len() as f32 + epsilon).sqrt();
    out.iter_mut().for_each(|out| *out *= factor);
}

/// `x += y`.
pub fn add(kernels: KernelSet, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    // SAFETY: the slices have one length.
    unsafe { (kernels.table().add)(x, y) };
}

/// `gate = activation(gate) * up`.
pub fn gated(kernels: KernelSet, activation: Activation, up: &[f32], gate: &mut [f32]) {
    assert_eq!(up.len(), gate.len());
    // SAFETY: the slices have one length.
    unsafe { (kernels.table().gated(activation))(up, gate) };
}

/// Some of the numbers in a slice: every `stride`-th, from the first on.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    pub numbers: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

/// `out += weights[0] * rows[0] + weights[1] * rows[1] + ...`, where rows are `row_stride` numbers apart. The length of `out` must
/// be a multiple of 16. A number's sum is added in the same order whatever is beside it.
pub fn add_weighted_rows(kernels: KernelSet, weights: Strided<'_>, rows: &[f32], row_stride: usize, out: &mut [f32]) {
    let Strided { numbers, stride, count } = weights;
    assert!(out.len().is_multiple_of(LANES), "whole vectors");
    if count > 0 {
        let last = count - 1;
        assert!(last.checked_mul(stride).is_some_and(|at| at < numbers.len()), "a weight for each row");
        let end = last.checked_mul(row_stride).and_then(|at| at.checked_add(out.len()));
        assert!(end.is_some_and(|end| end <= rows.len()), "all rows are there");
        // SAFETY: the last weight and the last row are in bounds, and `out` is whole vectors.
        unsafe {
            (kernels.table().add_weighted_rows)(WeightedRows {
                weights: numbers.as_ptr(),
                weight_stride: stride,
                rows: rows.as_ptr(),
                row_stride,
                count,
                out,
            });
        }
    }
}

/// `x = cap * tanh(x / cap)`.
pub fn softcap(kernels: KernelSet, cap: f32, x: &mut [f32]) {
    // SAFETY: any slice will do.
    unsafe { (kernels.table().softcap)(cap, x) };
}
