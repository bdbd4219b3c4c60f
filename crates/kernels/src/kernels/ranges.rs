//! Which numbers of a column lie in a range.

use crate::lanes::{LANES, Lanes};

/// Numbers of a word of bits.
const WORD: usize = u64::BITS as usize;

/// Clears the bits of numbers that are not in `least..=least + span`.
///
/// # Safety
/// `kept` has a bit for each number; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn keep_in_range<L: Lanes>(values: &[u32], least: u32, span: u32, kept: &mut [u64]) {
    let (words, rest) = values.as_chunks::<WORD>();
    for (numbers, kept) in words.iter().zip(kept.iter_mut()) {
        if *kept == 0 {
            continue;
        }
        let mut within = 0;
        for i in (0..WORD).step_by(LANES) {
            // SAFETY: four vectors are one word's numbers.
            within |= unsafe { L::within(numbers.as_ptr().add(i), least, span) } << i;
        }
        *kept &= within;
    }
    if let Some(kept) = kept.get_mut(words.len()) {
        let bit = |(i, number): (usize, &u32)| u64::from(number.wrapping_sub(least) <= span) << i;
        *kept &= rest.iter().enumerate().map(bit).sum::<u64>();
    }
}
