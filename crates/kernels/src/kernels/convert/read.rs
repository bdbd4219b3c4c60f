//! The numbers of a cell as floats.

use std::mem::MaybeUninit;

use super::Row;
use crate::kernels::attention::Cell;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{KEY_GROUP, KeyFormat, PAGE_TOKENS, VALUE_GROUP, ValueFormat};

/// # Safety
/// The cell holds 16 tokens of as many dimensions, as half floats or bytes; the instruction set of `L` is there.
#[inline(always)]
pub(super) unsafe fn keys<L: Lanes>(cell: Cell, room: &mut [MaybeUninit<Row>]) -> &[Row] {
    // SAFETY: offsets as in the layout.
    unsafe {
        for (d, to) in room.iter_mut().enumerate() {
            let keys = match cell.format.keys {
                KeyFormat::F16 => L::load_half(cell.lines.cast::<u16>().add(d * PAGE_TOKENS)),
                KeyFormat::Q8 => {
                    let line = cell.lines.add(d / 4 * 64).cast::<[[u8; 4]; PAGE_TOKENS]>().read();
                    let codes: [i8; PAGE_TOKENS] = line.map(|token| (token[d % 4] ^ 0x80) as i8);
                    let scales = L::load_half(cell.scales.cast::<u16>().add(d / KEY_GROUP * PAGE_TOKENS));
                    L::mul(L::load_i8(codes.as_ptr()), scales)
                }
                KeyFormat::Q6 | KeyFormat::Q4 => unreachable!("keys by channel stay as they are"),
            };
            L::store(to.as_mut_ptr().cast(), keys);
        }
        room.assume_init_ref()
    }
}

/// # Safety
/// As for `keys`.
#[inline(always)]
pub(super) unsafe fn values<L: Lanes>(cell: Cell, room: &mut [MaybeUninit<Row>]) -> &[Row] {
    let dim = room.len();
    let lines = cell.value_lines(dim);
    // SAFETY: offsets as in the layout.
    unsafe {
        for (row, to) in room.iter_mut().enumerate() {
            let (part, t) = (row / PAGE_TOKENS, row % PAGE_TOKENS);
            let values = match cell.format.values {
                ValueFormat::F16 => L::load_half(lines.cast::<u16>().add(t * dim + part * LANES)),
                ValueFormat::Q8 => {
                    let pairs = lines.add(part * 256 + t / 2 * 32).cast::<[[i8; 2]; LANES]>().read();
                    let codes: [i8; LANES] = pairs.map(|pair| pair[t % 2]);
                    let scales = cell.value_scales(dim).cast::<u16>().add(part * LANES / VALUE_GROUP * PAGE_TOKENS);
                    let mut tokens = [0f32; PAGE_TOKENS];
                    L::store(tokens.as_mut_ptr(), L::load_half(scales));
                    L::mul(L::load_i8(codes.as_ptr()), L::splat(tokens[t]))
                }
                ValueFormat::Q4 => unreachable!("values with zero points stay as they are"),
            };
            L::store(to.as_mut_ptr().cast(), values);
        }
        room.assume_init_ref()
    }
}
