//! Values in four bits, with a scale and a zero point for each token and group of dimensions.

use super::lines::{above, four, whole, within};
use super::{Row, half_above};
use crate::kernels::attention::Cell;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{PAGE_TOKENS, VALUE_GROUP, ZERO_POINTS_BYTES};

const CODE_MAX: f32 = 15.0;

/// # Safety
/// `to` is a cell for values of `dim` dimensions, valid for writing; the instruction set of `L` is there.
#[inline(always)]
pub(super) unsafe fn put_values<L: Lanes>(values: &[Row], to: Cell) {
    let dim = values.len();
    let lines = to.value_lines(dim).cast_mut();
    // SAFETY: offsets as in the layout.
    unsafe {
        for (g, group) in values.chunks(VALUE_GROUP).enumerate() {
            let parts = group.as_chunks::<PAGE_TOKENS>().0;
            let scales = to.value_scales(dim).cast_mut().add(g * ZERO_POINTS_BYTES);
            let steps = put_scales::<L>(parts, scales);
            for (part, tokens) in parts.iter().enumerate() {
                let mut codes = [[0; LANES]; PAGE_TOKENS];
                for (t, (inverse, zero)) in steps.into_iter().enumerate() {
                    let code = L::fma(L::load(tokens[t].as_ptr()), L::splat(inverse), L::splat(zero));
                    codes[t] = within(whole::<L>(code), CODE_MAX as i8);
                }
                let lines = lines.add((g * VALUE_GROUP / LANES + part) * 128);
                for (half, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
                    // Every other token is in the same word.
                    let word = |place: usize| {
                        let low = above(codes[place], codes[place + 2], 4);
                        let high = above(codes[place + 4], codes[place + 6], 4);
                        [low, high]
                    };
                    let line = four([word(0)[0], word(0)[1], word(1)[0], word(1)[1]]);
                    lines.add(half * 64).cast::<[u32; LANES]>().write(line);
                }
            }
        }
    }
}

/// Writes the scales and zero points of a group of dimensions of all tokens. Gives what a value is multiplied by and what is
/// added then.
///
/// # Safety
/// Room for `ZERO_POINTS_BYTES`; the instruction set of `L` is there.
#[inline(always)]
unsafe fn put_scales<L: Lanes>(parts: &[[Row; PAGE_TOKENS]], to: *mut u8) -> [(f32, f32); PAGE_TOKENS] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut ranges = [(0.0, 0.0); PAGE_TOKENS];
        for (t, range) in ranges.iter_mut().enumerate() {
            // Zero is among the values, so that it has a code.
            let (mut low, mut high) = (L::splat(0.0), L::splat(0.0));
            for tokens in parts {
                let values = L::load(tokens[t].as_ptr());
                low = L::max(low, L::sub(L::splat(0.0), values));
                high = L::max(high, values);
            }
            *range = (-L::largest(low), L::largest(high));
        }
        let widest = ranges.iter().map(|(low, high)| high - low).fold(0.0, f32::max);
        let factor = half_above::<L>(widest / CODE_MAX / 255.0, to.add(2 * PAGE_TOKENS).cast());
        let mut steps = [(0.0, 0.0); PAGE_TOKENS];
        for (t, (low, high)) in ranges.into_iter().enumerate() {
            let code = ((high - low) / CODE_MAX / factor.max(f32::MIN_POSITIVE)).ceil() as u8;
            let inverse = if code > 0 { 1.0 / (f32::from(code) * factor) } else { 0.0 };
            let zero = (-low * inverse * 16.0).round() as u8;
            *to.add(t) = code;
            *to.add(PAGE_TOKENS + t) = zero;
            steps[t] = (inverse, f32::from(zero) / 16.0);
        }
        steps
    }
}
