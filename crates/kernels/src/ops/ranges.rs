//! Filtering a column of numbers.

use std::ops::RangeInclusive;

use crate::KernelSet;

/// Clears the bits of numbers that are not in the range, and bits beyond the last number. Bit `i % 64` of word `i / 64` is
/// that of number `i`.
pub fn keep_in_range(kernels: KernelSet, values: &[u32], range: RangeInclusive<u32>, kept: &mut [u64]) {
    assert_eq!(kept.len(), values.len().div_ceil(64), "a bit for each number");
    let (least, most) = range.into_inner();
    match most.checked_sub(least) {
        // SAFETY: there is a bit for each number, and the table is one of this processor.
        Some(span) => unsafe { (kernels.table().keep_in_range)(values, least, span, kept) },
        None => kept.fill(0),
    }
}
