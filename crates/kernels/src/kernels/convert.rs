//! Making a cell of a page colder: its numbers are read as floats and written in the new format.

mod bytes;
mod channels;
mod lines;
mod read;
mod zero_points;

use std::mem::MaybeUninit;

use super::append::HEAD_DIM_MAX;
use super::attention::Cell;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{KeyFormat, ValueFormat};

/// 16 floats. Keys are a row for each dimension, of all tokens; values for each 16 dimensions a row for each token.
type Row = [f32; LANES];

/// Writes to `to` what `from` holds, in the format of `to`.
///
/// # Safety
/// The first can become the second (`PageFormat::can_become`) and holds 16 tokens of `dim`, a multiple of 16 and at most
/// `HEAD_DIM_MAX`; `to` is valid for writing and does not overlap it; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn convert<L: Lanes>(from: Cell, to: Cell, dim: usize) {
    let mut room = [const { MaybeUninit::<Row>::uninit() }; HEAD_DIM_MAX];
    // SAFETY: the caller's promise.
    unsafe {
        if from.format.keys == to.format.keys {
            let (lines, scales) = (to.format.keys.line_bytes(dim), to.format.keys.scale_bytes(dim));
            to.lines.cast_mut().copy_from_nonoverlapping(from.lines, lines);
            to.scales.cast_mut().copy_from_nonoverlapping(from.scales, scales);
        } else {
            let keys = read::keys::<L>(from, &mut room[..dim]);
            match to.format.keys {
                KeyFormat::F16 => unreachable!("no page becomes warmer"),
                KeyFormat::Q8 => bytes::put_keys::<L>(keys, to),
                KeyFormat::Q6 => channels::put_keys::<L, 6>(keys, to),
                KeyFormat::Q4 => channels::put_keys::<L, 4>(keys, to),
            }
        }
        if from.format.values == to.format.values {
            let (lines, scales) = (to.format.values.line_bytes(dim), to.format.values.scale_bytes(dim));
            to.value_lines(dim).cast_mut().copy_from_nonoverlapping(from.value_lines(dim), lines);
            to.value_scales(dim).cast_mut().copy_from_nonoverlapping(from.value_scales(dim), scales);
        } else {
            let values = read::values::<L>(from, &mut room[..dim]);
            match to.format.values {
                ValueFormat::F16 => unreachable!("no page becomes warmer"),
                ValueFormat::Q8 => bytes::put_values::<L>(values, to),
                ValueFormat::Q4 => zero_points::put_values::<L>(values, to),
            }
        }
    }
}

/// `x` as a half float that is no less, as a float.
#[inline(always)]
unsafe fn half_above<L: Lanes>(x: f32, to: *mut u16) -> f32 {
    let mut numbers = [0f32; LANES];
    let mut halves = [0u16; LANES];
    numbers[0] = x * (1.0 + 1.0 / 1024.0) + 1.0 / (1u32 << 25) as f32;
    // SAFETY: whole vectors; the caller gives room for one half.
    unsafe {
        L::store_half(halves.as_mut_ptr(), L::load(numbers.as_ptr()));
        L::store(numbers.as_mut_ptr(), L::load_half(halves.as_ptr()));
        to.write_unaligned(halves[0]);
    }
    numbers[0]
}
