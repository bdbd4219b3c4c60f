//! Dot products of one row of bytes and many.

use super::prefetch;
use crate::lanes::Lanes;

/// Bytes of a line.
const LINE: usize = 64;
/// Rows are scattered over memory, and each is done sooner than one arrives: this many are fetched ahead.
const ROWS_AHEAD: usize = 4;

/// `out[i]` = the dot product of `query` and row `numbers[i]`.
///
/// # Safety
/// `query` is a whole number of lines long, as is each row from `rows` on; all rows that are named are there, and `out` has
/// a place for each. No byte is -128. The instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn dots<L: Lanes>(query: &[i8], rows: *const i8, numbers: &[u32], out: &mut [i32]) {
    let row = |number: u32| rows.wrapping_add(number as usize * query.len());
    let fetch = |number: u32| (0..query.len()).step_by(LINE).for_each(|at| prefetch(row(number).wrapping_add(at)));
    let bias = L::SIGNED_BIAS * query.iter().map(|x| i32::from(*x)).sum::<i32>();
    numbers.iter().take(ROWS_AHEAD).for_each(|number| fetch(*number));
    for (i, (number, out)) in numbers.iter().zip(out).enumerate() {
        if let Some(ahead) = numbers.get(i + ROWS_AHEAD) {
            fetch(*ahead);
        }
        // SAFETY: both rows have these lines.
        unsafe {
            let mut sums = L::splat_int(0);
            let mut at = 0;
            while at < query.len() {
                let codes = L::load_line(row(*number).add(at).cast());
                sums = L::dot_signed(sums, codes, L::load_line(query.as_ptr().add(at).cast()));
                at += LINE;
            }
            *out = L::total(sums) - bias;
        }
    }
}
