//! Bytes of several vectors put side by side. Written so that compilers find the instructions for it.

use crate::lanes::{LANES, Lanes};

/// A byte for each lane.
pub(super) type Lane = [u8; LANES];

/// The nearest whole numbers, which are within -127..=127.
#[inline(always)]
pub(super) unsafe fn whole<L: Lanes>(v: L::F) -> Lane {
    let mut bytes = [0u8; LANES];
    // SAFETY: room for 16; the caller's promise that the instruction set is there.
    unsafe { L::store_i8(bytes.as_mut_ptr().cast(), L::round(v)) };
    bytes
}

/// Each number, at least 0 and at most `most`.
#[inline(always)]
pub(super) fn within(numbers: Lane, most: i8) -> Lane {
    let mut numbers = numbers;
    for number in &mut numbers {
        *number = (*number as i8).clamp(0, most) as u8;
    }
    numbers
}

/// Each byte with another in the bits above.
#[inline(always)]
pub(super) fn above(low: Lane, high: Lane, bits: u32) -> Lane {
    std::array::from_fn(|i| low[i] | high[i] << bits)
}

/// Four vectors as `[lanes, 4]`.
#[inline(always)]
pub(super) fn four(of: [Lane; 4]) -> [u32; LANES] {
    std::array::from_fn(|i| {
        u32::from(of[0][i]) | u32::from(of[1][i]) << 8 | u32::from(of[2][i]) << 16 | u32::from(of[3][i]) << 24
    })
}

/// Two vectors as `[lanes, 2]`.
#[inline(always)]
pub(super) fn two(of: [Lane; 2]) -> [u16; LANES] {
    std::array::from_fn(|i| u16::from(of[0][i]) | u16::from(of[1][i]) << 8)
}
