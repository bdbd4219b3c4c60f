//! Kernels over parts of single rows: norm, quantization, gated activation.

use crate::lanes::{LANES, Lanes};
use crate::weights::GROUP;

/// Runs `whole(i)` for each full vector of `len` and `tail(i)` for each element after them.
#[inline(always)]
fn split(len: usize, mut whole: impl FnMut(usize), mut tail: impl FnMut(usize)) {
    let full = len / LANES * LANES;
    let mut i = 0;
    while i < full {
        whole(i);
        i += LANES;
    }
    for i in full..len {
        tail(i);
    }
}

/// `out = x * weight`, and the sum of squares of each group of 32 numbers of `x`.
///
/// # Safety
/// The first three slices have one length, and `squares` a number for each group, the last of which may be shorter; the
/// instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn weigh<L: Lanes>(x: &[f32], weight: &[f32], out: &mut [f32], squares: &mut [f32]) {
    // SAFETY: `split` keeps offsets within a group.
    unsafe {
        for (g, squares) in squares.iter_mut().enumerate() {
            let (x, weight) = (&x[g * GROUP..], &weight[g * GROUP..]);
            let to = out[g * GROUP..].as_mut_ptr();
            let mut sum = L::splat(0.0);
            let mut tail_sum = 0.0;
            split(
                x.len().min(GROUP),
                |i| {
                    let v = L::load(x.as_ptr().add(i));
                    sum = L::fma(v, v, sum);
                    L::store(to.add(i), L::mul(v, L::load(weight.as_ptr().add(i))));
                },
                |i| {
                    tail_sum += x[i] * x[i];
                    *to.add(i) = x[i] * weight[i];
                },
            );
            *squares = L::sum(sum) + tail_sum;
        }
    }
}

/// The sum of some numbers.
///
/// # Safety
/// The instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn sum<L: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: `split` keeps offsets within the slice.
    unsafe {
        let mut sum = L::splat(0.0);
        let mut tail_sum = 0.0;
        split(x.len(), |i| sum = L::add(sum, L::load(x.as_ptr().add(i))), |i| tail_sum += x[i]);
        L::sum(sum) + tail_sum
    }
}

/// `x += y`.
///
/// # Safety
/// The slices have one length; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn add<L: Lanes>(x: &mut [f32], y: &[f32]) {
    // SAFETY: `split` keeps offsets within the common length.
    unsafe {
        let to = x.as_mut_ptr();
        split(
            y.len(),
            |i| L::store(to.add(i), L::add(L::load(to.add(i)), L::load(y.as_ptr().add(i)))),
            |i| *to.add(i) += y[i],
        );
    }
}

/// 8-bit numbers with what matmuls need to know of them.
pub(crate) struct Quantized<'a> {
    pub codes: &'a mut [i8],
    /// Of each group of 32.
    pub scales: &'a mut [f32],
    /// Of the codes of each 16.
    pub sums: &'a mut [i32],
    /// Scale times sum of each group of 32.
    pub scaled_sums: &'a mut [f32],
}

/// Rounds each group of 32 to 8 bits with a scale of its own.
///
/// # Safety
/// `x.len()` is a multiple of 32 and `out` of the lengths that go with it; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn quantize<L: Lanes>(x: &[f32], out: Quantized<'_>) {
    // SAFETY: two vectors cover a group, and there are `x.len() / 32` groups.
    unsafe {
        for (g, scale) in out.scales.iter_mut().enumerate() {
            let from = x.as_ptr().add(g * GROUP);
            let (a, b) = (L::load(from), L::load(from.add(LANES)));
            let largest = L::largest(L::max(L::abs(a), L::abs(b)));
            *scale = largest / 127.0;
            // Below this the inverse would overflow, and the group is as good as zero.
            let inverse = L::splat(if largest > 1e-30 { 127.0 / largest } else { 0.0 });
            let to = out.codes.as_mut_ptr().add(g * GROUP);
            let sums = L::store_codes(to, [L::mul(a, inverse), L::mul(b, inverse)]);
            out.sums[g * 2] = sums[0];
            out.sums[g * 2 + 1] = sums[1];
            out.scaled_sums[g] = *scale * (sums[0] + sums[1]) as f32;
        }
    }
}

/// `gate = silu(gate) * up`.
///
/// # Safety
/// The slices have one length; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn swiglu<L: Lanes>(up: &[f32], gate: &mut [f32]) {
    // SAFETY: `split` keeps offsets within the common length.
    unsafe {
        let to = gate.as_mut_ptr();
        split(
            up.len(),
            |i| {
                let g = L::load(to.add(i));
                let one = L::splat(1.0);
                let decay = L::exp(L::sub(L::splat(0.0), L::max(g, L::splat(-80.0))));
                let silu = L::div(g, L::add(one, decay));
                L::store(to.add(i), L::mul(silu, L::load(up.as_ptr().add(i))));
            },
            |i| *to.add(i) = *to.add(i) / (1.0 + (-*to.add(i)).exp()) * up[i],
        );
    }
}

/// `gate = silu(1.702 gate) / 1.702 * (up + 1)`, with both within 7, as gpt-oss does it.
///
/// # Safety
/// The slices have one length; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn swiglu_oai<L: Lanes>(up: &[f32], gate: &mut [f32]) {
    const LIMIT: f32 = 7.0;
    const SLOPE: f32 = 1.702;
    // SAFETY: `split` keeps offsets within the common length.
    unsafe {
        let to = gate.as_mut_ptr();
        let zero = L::splat(0.0);
        // The lesser of two is the opposite of the greater of their opposites.
        let limited = |v| L::sub(zero, L::max(L::sub(zero, v), L::splat(-LIMIT)));
        split(
            up.len(),
            |i| {
                let g = limited(L::load(to.add(i)));
                let u = L::max(limited(L::load(up.as_ptr().add(i))), L::splat(-LIMIT));
                let decay = L::exp(L::sub(zero, L::max(L::mul(g, L::splat(SLOPE)), L::splat(-80.0))));
                let gated = L::div(g, L::add(L::splat(1.0), decay));
                L::store(to.add(i), L::mul(gated, L::add(u, L::splat(1.0))));
            },
            |i| {
                let (g, u) = ((*to.add(i)).min(LIMIT), up[i].clamp(-LIMIT, LIMIT));
                *to.add(i) = g / (1.0 + (-g * SLOPE).exp()) * (u + 1.0);
            },
        );
    }
}

/// `gate = gelu(gate) * up`, where GELU is the usual approximation by a hyperbolic tangent.
///
/// # Safety
/// The slices have one length; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn geglu<L: Lanes>(up: &[f32], gate: &mut [f32]) {
    /// `x (1 + tanh z) / 2` is `x / (1 + exp(-2 z))`, with `2 z = LINEAR x + CUBIC x^3`.
    const LINEAR: f32 = 1.595_769_2;
    const CUBIC: f32 = LINEAR * 0.044_715;
    // SAFETY: `split` keeps offsets within the common length.
    unsafe {
        let to = gate.as_mut_ptr();
        split(
            up.len(),
            |i| {
                let g = L::load(to.add(i));
                let slope = L::fma(L::mul(g, g), L::splat(CUBIC), L::splat(LINEAR));
                let decay = L::exp(L::sub(L::splat(0.0), L::max(L::mul(g, slope), L::splat(-80.0))));
                let gelu = L::div(g, L::add(L::splat(1.0), decay));
                L::store(to.add(i), L::mul(gelu, L::load(up.as_ptr().add(i))));
            },
            |i| {
                let g = *to.add(i);
                *to.add(i) = g / (1.0 + (-g * (LINEAR + CUBIC * g * g)).exp()) * up[i];
            },
        );
    }
}

/// `x = cap * tanh(x / cap)`.
///
/// # Safety
/// The instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn softcap<L: Lanes>(cap: f32, x: &mut [f32]) {
    let (vectors, rest) = x.as_chunks_mut::<LANES>();
    // A loop: a closure of this length was called for each vector, and its instructions one by one.
    for vector in vectors {
        // SAFETY: a whole vector.
        unsafe {
            // `tanh z` is `2 / (1 + exp(-2 z)) - 1`.
            let twice = L::max(L::mul(L::load(vector.as_ptr()), L::splat(2.0 / cap)), L::splat(-80.0));
            let decay = L::exp(L::sub(L::splat(0.0), twice));
            let tanh = L::sub(L::div(L::splat(2.0), L::add(L::splat(1.0), decay)), L::splat(1.0));
            L::store(vector.as_mut_ptr(), L::mul(tanh, L::splat(cap)));
        }
    }
    rest.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
}

/// A sum of rows, each multiplied by a weight.
pub(crate) struct WeightedRows<'a> {
    pub weights: *const f32,
    /// Numbers from one weight to the next, and from one row to the next.
    pub weight_stride: usize,
    pub rows: *const f32,
    pub row_stride: usize,
    pub count: usize,
    /// What the sum is added to.
    pub out: &'a mut [f32],
}

/// Vectors of a sum that are kept in registers.
const VECTORS: usize = 4;

/// Adds a weighted sum of rows.
///
/// # Safety
/// `count` weights and rows as long as `out` are there, which is whole vectors; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn add_weighted_rows<L: Lanes>(mut of: WeightedRows<'_>) {
    let vectors = of.out.len() / LANES;
    let together = vectors / VECTORS * VECTORS;
    let mut vector = 0;
    // SAFETY: the caller's promise covers each group of vectors.
    unsafe {
        while vector < together {
            add_vectors::<L, VECTORS>(&mut of, vector * LANES);
            vector += VECTORS;
        }
        while vector < vectors {
            add_vectors::<L, 1>(&mut of, vector * LANES);
            vector += 1;
        }
    }
}

/// # Safety
/// As `add_weighted_rows`; there are `V` vectors from `first` on.
#[inline(always)]
unsafe fn add_vectors<L: Lanes, const V: usize>(of: &mut WeightedRows<'_>, first: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let to = of.out.as_mut_ptr().add(first);
        let mut sums = [L::splat(0.0); V];
        for v in 0..V {
            sums[v] = L::load(to.add(v * LANES));
        }
        for row in 0..of.count {
            let weight = L::splat(*of.weights.add(row * of.weight_stride));
            let numbers = of.rows.add(row * of.row_stride + first);
            for v in 0..V {
                sums[v] = L::fma(weight, L::load(numbers.add(v * LANES)), sums[v]);
            }
        }
        for v in 0..V {
            L::store(to.add(v * LANES), sums[v]);
        }
    }
}
