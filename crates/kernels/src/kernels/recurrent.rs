//! Kernels of recurrent layers: a convolution over the last tokens, and the gated delta rule.

use crate::lanes::{LANES, Lanes};

/// Adds to the sum of squares under which a vector is normalized.
const NORM_EPSILON: f32 = 1e-6;

/// `out = sum of kernel[j] * inputs[j]` over the taps `j`, each channel by itself; then `out / (1 + exp(-out))` if `is_silu`.
///
/// # Safety
/// All slices are as long as `out`, a multiple of 16, and there are as many in `kernel` as in `inputs`; the instruction set
/// of `L` is there.
#[inline(always)]
pub(crate) unsafe fn causal_conv<L: Lanes>(kernel: &[&[f32]], inputs: &[&[f32]], is_silu: bool, out: &mut [f32]) {
    // SAFETY: whole vectors within the slices.
    unsafe {
        let mut i = 0;
        while i < out.len() {
            let mut sum = L::splat(0.0);
            for (kernel, input) in kernel.iter().zip(inputs) {
                sum = L::fma(L::load(kernel.as_ptr().add(i)), L::load(input.as_ptr().add(i)), sum);
            }
            if is_silu {
                let decay = L::exp(L::sub(L::splat(0.0), L::max(sum, L::splat(-80.0))));
                sum = L::div(sum, L::add(L::splat(1.0), decay));
            }
            L::store(out.as_mut_ptr().add(i), sum);
            i += LANES;
        }
    }
}

/// `out = x * scale / sqrt(sum of x^2)`.
///
/// # Safety
/// Both slices have one length, a multiple of 16; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn l2_normalize<L: Lanes>(x: &[f32], scale: f32, out: &mut [f32]) {
    // SAFETY: whole vectors within the slices.
    unsafe {
        let mut squares = L::splat(0.0);
        let mut i = 0;
        while i < x.len() {
            let v = L::load(x.as_ptr().add(i));
            squares = L::fma(v, v, squares);
            i += LANES;
        }
        let factor = L::splat(scale / (L::sum(squares) + NORM_EPSILON).sqrt());
        i = 0;
        while i < x.len() {
            L::store(out.as_mut_ptr().add(i), L::mul(L::load(x.as_ptr().add(i)), factor));
            i += LANES;
        }
    }
}

/// What the gated delta rule is given for one token and head.
#[derive(Clone, Copy)]
pub(crate) struct DeltaRow<'a> {
    pub key: &'a [f32],
    pub query: &'a [f32],
    pub value: &'a [f32],
    /// How much of the difference between the value and what the key recalls is written.
    pub beta: f32,
    /// What the state is multiplied by before.
    pub decay: f32,
}

/// One token of the gated delta rule: `state` `[keys, values]` decays, `update = beta (value - what the key recalls)` is added
/// at the key, and `out` is what the query recalls then.
///
/// # Safety
/// Key and query have one length; value, `update` and `out` another, a multiple of 16; `state` is as long as their product.
/// The instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn delta_step<L: Lanes>(row: DeltaRow<'_>, state: &mut [f32], update: &mut [f32], out: &mut [f32]) {
    const COLS: usize = 4 * LANES;
    let width = row.value.len();
    let mut col = 0;
    // SAFETY: whole vectors within the rows of the state.
    unsafe {
        while col + COLS <= width {
            step_cols::<L, 4>(row, state, update, out, col);
            col += COLS;
        }
        while col < width {
            step_cols::<L, 1>(row, state, update, out, col);
            col += LANES;
        }
    }
}

/// # Safety
/// As `delta_step`; `N` vectors from `col` on are within `width`.
#[inline(always)]
unsafe fn step_cols<L: Lanes, const N: usize>(
    row: DeltaRow<'_>,
    state: &mut [f32],
    update: &mut [f32],
    out: &mut [f32],
    col: usize,
) {
    let width = row.value.len();
    // SAFETY: the caller's promise.
    unsafe {
        let start = state.as_mut_ptr().add(col);
        let (beta, decay) = (L::splat(row.beta), L::splat(row.decay));
        let mut updates = [L::splat(0.0); N];
        for (i, key) in row.key.iter().enumerate() {
            let key = L::splat(*key);
            for (n, recalled) in updates.iter_mut().enumerate() {
                *recalled = L::fma(key, L::load(start.add(i * width + n * LANES)), *recalled);
            }
        }
        for (n, update_to) in updates.iter_mut().enumerate() {
            let at = col + n * LANES;
            let difference = L::sub(L::load(row.value.as_ptr().add(at)), L::mul(decay, *update_to));
            *update_to = L::mul(beta, difference);
            L::store(update.as_mut_ptr().add(at), *update_to);
        }
        let mut sums = [L::splat(0.0); N];
        for (i, (key, query)) in row.key.iter().zip(row.query).enumerate() {
            let (key, query) = (L::splat(*key), L::splat(*query));
            for (n, sum) in sums.iter_mut().enumerate() {
                let at = start.add(i * width + n * LANES);
                let new = L::fma(key, updates[n], L::mul(decay, L::load(at)));
                L::store(at, new);
                *sum = L::fma(query, new, *sum);
            }
        }
        for (n, sum) in sums.iter().enumerate() {
            L::store(out.as_mut_ptr().add(col + n * LANES), *sum);
        }
    }
}

/// Changes a state as `delta_step` did when it computed `update`, to the last bit.
///
/// # Safety
/// `update` is a multiple of 16 long, `state` as long as its product with `key`; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn delta_apply<L: Lanes>(key: &[f32], update: &[f32], decay: f32, state: &mut [f32]) {
    let width = update.len();
    // SAFETY: whole vectors within the rows of the state.
    unsafe {
        let decay = L::splat(decay);
        for (i, key) in key.iter().enumerate() {
            let key = L::splat(*key);
            let mut col = 0;
            while col < width {
                let at = state.as_mut_ptr().add(i * width + col);
                L::store(at, L::fma(key, L::load(update.as_ptr().add(col)), L::mul(decay, L::load(at))));
                col += LANES;
            }
        }
    }
}

/// `x = x / (1 + exp(-gate))`.
///
/// # Safety
/// Both slices have one length, a multiple of 16; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn sigmoid_gate<L: Lanes>(gate: &[f32], x: &mut [f32]) {
    // SAFETY: whole vectors within the slices.
    unsafe {
        let mut i = 0;
        while i < gate.len() {
            let decay = L::exp(L::sub(L::splat(0.0), L::max(L::load(gate.as_ptr().add(i)), L::splat(-80.0))));
            let at = x.as_mut_ptr().add(i);
            L::store(at, L::div(L::load(at), L::add(L::splat(1.0), decay)));
            i += LANES;
        }
    }
}
