//! Writing the keys and values of one token to its page.

use super::attention::Cell;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{KEY_GROUP, KeyFormat, PAGE_TOKENS, VALUE_GROUP, ValueFormat};

/// Maximum head dimension; fixes the size of buffers.
pub(crate) const HEAD_DIM_MAX: usize = 512;

/// Writes a token's keys and values of one head to place `slot` of a cell. No byte of another token is touched, and what is
/// written depends on this token alone.
///
/// # Safety
/// Both slices are one head long, a multiple of 16 and at most `HEAD_DIM_MAX`; the cell is valid for writing this slot
/// and its format takes single tokens; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn append<L: Lanes>(keys: &[f32], values: &[f32], slot: usize, cell: Cell) {
    // SAFETY: the caller's promise.
    unsafe {
        match cell.format.keys {
            KeyFormat::F16 => put_half_keys::<L>(keys, slot, cell),
            KeyFormat::Q8 => put_byte_keys::<L>(keys, slot, cell),
            KeyFormat::Q6 | KeyFormat::Q4 => unreachable!("a batch writes to pages that take single tokens only"),
        }
        match cell.format.values {
            ValueFormat::F16 => put_half_values::<L>(values, slot, cell),
            ValueFormat::Q8 => put_byte_values::<L>(values, slot, cell),
            ValueFormat::Q4 => unreachable!("a batch writes to pages that take single tokens only"),
        }
    }
}

// The four below have the contract of `append`; the offsets are those of `pages/layout.rs`.

#[inline(always)]
unsafe fn put_half_keys<L: Lanes>(keys: &[f32], slot: usize, cell: Cell) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = to_halves::<L>(keys);
        let to = cell.lines.cast_mut().cast::<u16>().add(slot);
        for (d, key) in halves[..keys.len()].iter().enumerate() {
            *to.add(d * PAGE_TOKENS) = *key;
        }
    }
}

#[inline(always)]
unsafe fn put_byte_keys<L: Lanes>(keys: &[f32], slot: usize, cell: Cell) {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = to_bytes::<L, KEY_GROUP>(keys);
        let to = cell.lines.cast_mut().cast::<[u8; 4]>().add(slot);
        for (quad, codes) in bytes.codes[..keys.len()].as_chunks::<4>().0.iter().enumerate() {
            *to.add(quad * PAGE_TOKENS) = codes.map(|code| code as u8 ^ 0x80);
        }
        put_scales(&bytes.scales[..keys.len().div_ceil(KEY_GROUP)], slot, cell.scales);
    }
}

#[inline(always)]
unsafe fn put_half_values<L: Lanes>(values: &[f32], slot: usize, cell: Cell) {
    let dim = values.len();
    // SAFETY: the caller's promise.
    unsafe {
        let halves = to_halves::<L>(values);
        let to = cell.value_lines(dim).cast_mut().cast::<u16>().add(slot * dim);
        to.copy_from_nonoverlapping(halves.as_ptr(), dim);
    }
}

#[inline(always)]
unsafe fn put_byte_values<L: Lanes>(values: &[f32], slot: usize, cell: Cell) {
    let dim = values.len();
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = to_bytes::<L, VALUE_GROUP>(values);
        let to = cell.value_lines(dim).cast_mut().add(slot / 2 * 32 + slot % 2);
        for (d, code) in bytes.codes[..dim].iter().enumerate() {
            *to.add(d / LANES * 256 + d % LANES * 2) = *code as u8;
        }
        put_scales(&bytes.scales[..dim.div_ceil(VALUE_GROUP)], slot, cell.value_scales(dim));
    }
}

#[inline(always)]
unsafe fn to_halves<L: Lanes>(x: &[f32]) -> [u16; HEAD_DIM_MAX] {
    let mut halves = [0; HEAD_DIM_MAX];
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: whole vectors of both, by the caller's promise.
        unsafe { L::store_half(halves.as_mut_ptr().add(at), L::load(x.as_ptr().add(at))) };
    }
    halves
}

/// A head of one token as bytes.
struct Bytes {
    codes: [i8; HEAD_DIM_MAX],
    /// Half floats, of each group.
    scales: [u16; LANES],
}

/// Quantizes a head to bytes with a scale for each group of dimensions.
#[inline(always)]
unsafe fn to_bytes<L: Lanes, const GROUP: usize>(x: &[f32]) -> Bytes {
    let mut bytes = Bytes { codes: [0; HEAD_DIM_MAX], scales: [0; LANES] };
    let mut scales = [0f32; LANES];
    // SAFETY: whole vectors of `x`; there are at most 16 groups.
    unsafe {
        for (group, scale) in x.chunks(GROUP).zip(&mut scales) {
            let mut largest = L::splat(0.0);
            for part in group.chunks_exact(LANES) {
                largest = L::max(largest, L::abs(L::load(part.as_ptr())));
            }
            *scale = L::largest(largest) * SCALE_UP + SCALE_LEAST;
        }
        L::store_half(bytes.scales.as_mut_ptr(), L::load(scales.as_ptr()));
        L::store(scales.as_mut_ptr(), L::load_half(bytes.scales.as_ptr()));
        for (g, (group, scale)) in x.chunks(GROUP).zip(scales).enumerate() {
            let inverse = L::splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
            for (i, part) in group.chunks_exact(LANES).enumerate() {
                let to = bytes.codes.as_mut_ptr().add(g * GROUP + i * LANES);
                L::store_i8(to, L::round(L::mul(L::load(part.as_ptr()), inverse)));
            }
        }
    }
    bytes
}

/// A scale is the largest number times this plus `SCALE_LEAST`, so that no code of the group goes beyond 127 even after the
/// scale has become a half float: that may round it down by 2^-11 of it, or by 2^-25 where halves are subnormal.
pub(super) const SCALE_UP: f32 = (1.0 + 1.0 / 2048.0) / 127.0;
pub(super) const SCALE_LEAST: f32 = 1.0 / (1u32 << 25) as f32;

#[inline(always)]
unsafe fn put_scales(scales: &[u16], slot: usize, to: *const u8) {
    for (g, scale) in scales.iter().enumerate() {
        // SAFETY: 16 scales for each group, by the caller's promise.
        unsafe { to.cast_mut().cast::<u16>().add(g * PAGE_TOKENS + slot).write_unaligned(*scale) };
    }
}
