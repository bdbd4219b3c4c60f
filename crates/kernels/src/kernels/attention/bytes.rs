//! Keys as bytes, times queries rounded to bytes.

use super::{CHUNK_TOKENS, Cell, QuantizedQueries};
use crate::kernels::prefetch;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::KEY_GROUP;

/// Scores of `N` queries against some cells, to rows of `CHUNK_TOKENS`.
///
/// # Safety
/// `N` queries of `dim`; the cells' keys are bytes; as many scores as they have tokens fit into each row.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes, const N: usize>(
    queries: QuantizedQueries,
    dim: usize,
    cells: &[Cell],
    scores: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut first = 0;
        while first < cells.len() {
            let (cells, to) = (&cells[first..], scores.add(first * LANES));
            // All pages of a chunk where registers hold the sums, else as many as they do; few ways, for there are many `N`.
            first += match (L::SUMS * 3 / 2 / N).min(cells.len()) {
                8.. if N <= 3 => page_scores::<L, N, 8>(queries, dim, cells, to),
                4.. if (4..=6).contains(&N) => page_scores::<L, N, 4>(queries, dim, cells, to),
                2.. => page_scores::<L, N, 2>(queries, dim, cells, to),
                _ => page_scores::<L, N, 1>(queries, dim, cells, to),
            };
        }
    }
}

/// Scores of `N` queries against the first `P` cells; gives back `P`.
#[inline(always)]
unsafe fn page_scores<L: Lanes, const N: usize, const P: usize>(
    queries: QuantizedQueries,
    dim: usize,
    cells: &[Cell],
    scores: *mut f32,
) -> usize {
    let (groups, padded) = (dim.div_ceil(KEY_GROUP), dim.next_multiple_of(KEY_GROUP));
    // SAFETY: a line for each four dimensions and 16 scales for each group in every cell; otherwise as above.
    unsafe {
        let mut lines = [std::ptr::null::<u8>(); P];
        let mut values = [std::ptr::null::<u8>(); P];
        // Bytes of values that are fetched with a line of keys.
        let mut ahead = [0; P];
        for p in 0..P {
            (lines[p], values[p]) = (cells[p].lines, cells[p].value_lines(dim));
            ahead[p] = cells[p].format.values.line_bytes(dim) / (dim / 4);
            prefetch(cells[p].value_scales(dim));
        }
        for g in 0..groups {
            let mut dots = [[L::splat_int(0); N]; P];
            if !L::WIDE_IS_CENTERED {
                for n in 0..N {
                    let sums = queries.sums.add((n * groups + g) * 2);
                    let start = L::splat_int(-128 * (*sums + *sums.add(1)));
                    for p in 0..P {
                        dots[p][n] = start;
                    }
                }
            }
            for quad in g * KEY_GROUP / 4..dim.min((g + 1) * KEY_GROUP) / 4 {
                for p in 0..P {
                    prefetch(values[p].wrapping_add(quad * ahead[p]));
                    let line = L::load_line(lines[p].add(quad * 64));
                    for n in 0..N {
                        dots[p][n] = L::dot_wide(dots[p][n], line, queries.codes.add(n * padded + quad * 4));
                    }
                }
            }
            for p in 0..P {
                let scale = L::load_half(cells[p].scales.cast::<u16>().add(g * LANES));
                for n in 0..N {
                    let to = scores.add(n * CHUNK_TOKENS + p * LANES);
                    let scale = L::mul(scale, L::splat(*queries.scales.add(n * groups + g)));
                    let before = if g == 0 { L::splat(0.0) } else { L::load(to) };
                    L::store(to, L::fma(L::to_float(dots[p][n]), scale, before));
                }
            }
        }
    }
    P
}
