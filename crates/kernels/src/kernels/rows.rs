//! Kernels over single rows: norm, quantization, gated activation, softmax pieces.

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

/// `out = x / rms(x) * weight`.
///
/// # Safety
/// The three slices have one length; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn rms_norm<L: Lanes>(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    // SAFETY: `split` keeps offsets within the common length.
    unsafe {
        let mut squares = L::splat(0.0);
        let mut tail_squares = 0.0;
        split(
            x.len(),
            |i| {
                let v = L::load(x.as_ptr().add(i));
                squares = L::fma(v, v, squares);
            },
            |i| tail_squares += x[i] * x[i],
        );
        let mean = (L::sum(squares) + tail_squares) / x.len() as f32;
        let factor = 1.0 / (mean + epsilon).sqrt();
        let to = out.as_mut_ptr();
        split(
            x.len(),
            |i| {
                let scaled = L::mul(L::load(x.as_ptr().add(i)), L::splat(factor));
                L::store(to.add(i), L::mul(scaled, L::load(weight.as_ptr().add(i))));
            },
            |i| *to.add(i) = x[i] * factor * weight[i],
        );
    }
}

/// Rounds each group of 32 to 8 bits with a scale of its own, and sums the codes of each 16.
///
/// # Safety
/// `x.len()` is a multiple of 32; `codes` is as long, `scales` a 32nd, `sums` a 16th; the instruction set is there.
#[inline(always)]
pub(crate) unsafe fn quantize<L: Lanes>(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    // SAFETY: two vectors cover a group, and there are `x.len() / 32` groups.
    unsafe {
        for (g, scale) in scales.iter_mut().enumerate() {
            let from = x.as_ptr().add(g * GROUP);
            let (a, b) = (L::load(from), L::load(from.add(LANES)));
            let largest = L::largest(L::max(L::abs(a), L::abs(b)));
            *scale = largest / 127.0;
            // Below this the inverse would overflow, and the group is as good as zero.
            let inverse = L::splat(if largest > 1e-30 { 127.0 / largest } else { 0.0 });
            let (a, b) = (L::round(L::mul(a, inverse)), L::round(L::mul(b, inverse)));
            let to = codes.as_mut_ptr().add(g * GROUP);
            L::store_i8(to, a);
            L::store_i8(to.add(LANES), b);
            sums[g * 2] = L::sum(a) as i32;
            sums[g * 2 + 1] = L::sum(b) as i32;
        }
    }
}

/// `out = silu(gate) * up`.
///
/// # Safety
/// The three slices have one length; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn swiglu<L: Lanes>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    // SAFETY: `split` keeps offsets within the common length.
    unsafe {
        let to = out.as_mut_ptr();
        split(
            gate.len(),
            |i| {
                let g = L::load(gate.as_ptr().add(i));
                let one = L::splat(1.0);
                let decay = L::exp(L::sub(L::splat(0.0), L::max(g, L::splat(-80.0))));
                let silu = L::div(g, L::add(one, decay));
                L::store(to.add(i), L::mul(silu, L::load(up.as_ptr().add(i))));
            },
            |i| *to.add(i) = gate[i] / (1.0 + (-gate[i]).exp()) * up[i],
        );
    }
}

/// Floats as half floats.
///
/// # Safety
/// The slices have one length; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn to_half<L: Lanes>(x: &[f32], out: &mut [u16]) {
    // SAFETY: `split` keeps offsets within the common length.
    unsafe {
        let to = out.as_mut_ptr();
        split(
            x.len(),
            |i| L::store_half(to.add(i), L::load(x.as_ptr().add(i))),
            |i| *to.add(i) = half::f16::from_f32(x[i]).to_bits(),
        );
    }
}
