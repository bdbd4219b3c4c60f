//! Keys and values as bytes, each as if its tokens had been appended one by one.

use super::Row;
use super::lines::{four, two, whole};
use crate::kernels::append::{SCALE_LEAST, SCALE_UP};
use crate::kernels::attention::Cell;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{KEY_GROUP, PAGE_TOKENS, VALUE_GROUP};

/// Scales of 16 groups for the largest number of each: as half floats to `to`, and the inverse of what these are.
#[inline(always)]
unsafe fn put_scales<L: Lanes>(largest: L::F, to: *mut u16) -> L::F {
    // SAFETY: the caller gives room for 16 halves.
    unsafe {
        let scales = L::add(L::mul(largest, L::splat(SCALE_UP)), L::splat(SCALE_LEAST));
        L::store_half(to, scales);
        let scales = L::load_half(to);
        // Where a scale is zero, so are the numbers.
        L::div(L::splat(1.0), L::max(scales, L::splat(2.0 * SCALE_LEAST)))
    }
}

/// # Safety
/// `to` is a cell for keys of `dim` dimensions, valid for writing; the instruction set of `L` is there.
#[inline(always)]
pub(super) unsafe fn put_keys<L: Lanes>(keys: &[Row], to: Cell) {
    // SAFETY: 16 scales for each group, a line for each four dimensions.
    unsafe {
        for (g, group) in keys.chunks(KEY_GROUP).enumerate() {
            let mut largest = L::splat(0.0);
            for tokens in group {
                largest = L::max(largest, L::abs(L::load(tokens.as_ptr())));
            }
            let inverse = put_scales::<L>(largest, to.scales.cast_mut().cast::<u16>().add(g * PAGE_TOKENS));
            for (q, quad) in group.as_chunks::<4>().0.iter().enumerate() {
                let mut codes = [[0; LANES]; 4];
                for (code, tokens) in codes.iter_mut().zip(quad) {
                    *code = whole::<L>(L::mul(L::load(tokens.as_ptr()), inverse));
                }
                let line = four(codes).map(|word| word ^ 0x8080_8080);
                to.lines.cast_mut().add((g * KEY_GROUP / 4 + q) * 64).cast::<[u32; LANES]>().write(line);
            }
        }
    }
}

/// # Safety
/// `to` is a cell for values of `dim` dimensions, valid for writing; the instruction set of `L` is there.
#[inline(always)]
pub(super) unsafe fn put_values<L: Lanes>(values: &[Row], to: Cell) {
    let dim = values.len();
    let (lines, scales) = (to.value_lines(dim).cast_mut(), to.value_scales(dim).cast_mut().cast::<u16>());
    // SAFETY: 16 scales for each group, 32 bytes for each pair of tokens and part.
    unsafe {
        for (g, group) in values.chunks(VALUE_GROUP).enumerate() {
            let parts = group.as_chunks::<PAGE_TOKENS>().0;
            let mut numbers = [0f32; PAGE_TOKENS];
            for (t, number) in numbers.iter_mut().enumerate() {
                let mut largest = L::splat(0.0);
                for tokens in parts {
                    largest = L::max(largest, L::abs(L::load(tokens[t].as_ptr())));
                }
                *number = L::largest(largest);
            }
            let inverse = put_scales::<L>(L::load(numbers.as_ptr()), scales.add(g * PAGE_TOKENS));
            L::store(numbers.as_mut_ptr(), inverse);
            for (part, tokens) in parts.iter().enumerate() {
                for (pair, tokens) in tokens.as_chunks::<2>().0.iter().enumerate() {
                    let mut codes = [[0; LANES]; 2];
                    for (i, code) in codes.iter_mut().enumerate() {
                        let inverse = L::splat(numbers[2 * pair + i]);
                        *code = whole::<L>(L::mul(L::load(tokens[i].as_ptr()), inverse));
                    }
                    let at = (g * VALUE_GROUP / LANES + part) * 256 + pair * 32;
                    lines.add(at).cast::<[u16; LANES]>().write(two(codes));
                }
            }
        }
    }
}
