//! Keys in four or six bits, with a scale and an offset for each channel.

use super::lines::{Lane, above, four, whole, within};
use super::{Row, half_above};
use crate::kernels::append::HEAD_DIM_MAX;
use crate::kernels::attention::Cell;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{KEY_GROUP, KeyFormat, PAGE_TOKENS};

/// Writes keys with `BITS` bits each.
///
/// # Safety
/// `to` is a cell for keys of `dim` dimensions, valid for writing; the instruction set of `L` is there.
#[inline(always)]
pub(super) unsafe fn put_keys<L: Lanes, const BITS: u32>(keys: &[Row], to: Cell) {
    let dim = keys.len();
    // SAFETY: the layout has room for all that is written.
    unsafe {
        let steps = put_scales::<L, BITS>(keys, to.scales.cast_mut());
        let zero = L::splat((1 << (BITS - 1)) as f32);
        let mut codes = [[0u8; PAGE_TOKENS]; HEAD_DIM_MAX];
        for (d, tokens) in keys.iter().enumerate() {
            let away = L::sub(L::load(tokens.as_ptr()), L::splat(steps.offsets[d]));
            let code = whole::<L>(L::fma(away, L::splat(steps.inverses[d]), zero));
            // Steps are wide enough, but for what floats round.
            codes[d] = within(code, (1 << BITS) - 1);
        }
        let nibbles = to.lines.cast_mut();
        let pairs = nibbles.add(KeyFormat::Q4.line_bytes(dim));
        for (g, group) in codes[..dim].chunks(KEY_GROUP).enumerate() {
            let low = |d: usize| group[d].map(|code| code & 15);
            let high = |d: usize| group[d].map(|code| code >> 4);
            let len = group.len();
            for q in 0..len / 8 {
                let line = [0, 1, 2, 3].map(|j| above(low(4 * q + j), low(len / 2 + 4 * q + j), 4));
                put_line(nibbles.add(g * 256 + q * 64), line);
            }
            for q in (0..len / 16).filter(|_| BITS == 6) {
                let line = [0, 1, 2, 3].map(|j| {
                    let of = |i: usize| high(i * len / 4 + 4 * q + j);
                    above(above(of(0), of(1), 2), above(of(2), of(3), 2), 4)
                });
                put_line(pairs.add(g * 128 + q * 64), line);
            }
        }
    }
}

/// # Safety
/// Room for 64 bytes.
#[inline(always)]
unsafe fn put_line(to: *mut u8, line: [Lane; 4]) {
    // SAFETY: the caller's promise.
    unsafe { to.cast::<[u32; LANES]>().write_unaligned(four(line)) };
}

/// What keys are rounded with.
struct Steps {
    offsets: [f32; HEAD_DIM_MAX],
    /// One divided by the scale.
    inverses: [f32; HEAD_DIM_MAX],
}

/// Finds and writes the smallest scales with which every key is within half a step of a code.
///
/// # Safety
/// There is room for a scale and an offset of each dimension and two factors; the instruction set of `L` is there.
#[inline(always)]
unsafe fn put_scales<L: Lanes, const BITS: u32>(keys: &[Row], to: *mut u8) -> Steps {
    let dim = keys.len();
    let (below, above) = ((1 << (BITS - 1)) as f32, ((1 << (BITS - 1)) - 1) as f32);
    let (mut low, mut high) = ([0f32; HEAD_DIM_MAX], [0f32; HEAD_DIM_MAX]);
    let mut steps = Steps { offsets: [0.0; HEAD_DIM_MAX], inverses: [0.0; HEAD_DIM_MAX] };
    let (mut offset_most, mut scale_most) = (0f32, 0f32);
    // SAFETY: the caller's promise.
    unsafe {
        for (d, tokens) in keys.iter().enumerate() {
            let tokens = L::load(tokens.as_ptr());
            high[d] = L::largest(tokens);
            low[d] = -L::largest(L::sub(L::splat(0.0), tokens));
            steps.offsets[d] = low[d] + (high[d] - low[d]) * (below / (below + above));
            offset_most = offset_most.max(steps.offsets[d].abs());
        }
        let factors = to.add(2 * dim).cast::<u16>();
        let offset_factor = half_above::<L>(offset_most / 127.0, factors.add(1));
        let mut scales = [0f32; HEAD_DIM_MAX];
        for d in 0..dim {
            let code = (steps.offsets[d] / offset_factor.max(f32::MIN_POSITIVE)).round() as i8;
            *to.add(dim + d) = code as u8;
            steps.offsets[d] = f32::from(code) * offset_factor;
            // The rounded offset is not quite in the middle.
            scales[d] = ((steps.offsets[d] - low[d]) / below).max((high[d] - steps.offsets[d]) / above);
            scale_most = scale_most.max(scales[d]);
        }
        let scale_factor = half_above::<L>(scale_most / 255.0, factors);
        for d in 0..dim {
            let code = (scales[d] / scale_factor.max(f32::MIN_POSITIVE)).ceil() as u8;
            *to.add(d) = code;
            steps.inverses[d] = if code > 0 { 1.0 / (f32::from(code) * scale_factor) } else { 0.0 };
        }
    }
    steps
}
