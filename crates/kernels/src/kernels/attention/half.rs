//! Keys and values as half floats.

use super::{CHUNK_TOKENS, Cell, Chunk, PAGE_TOKENS};
use crate::kernels::prefetch;
use crate::lanes::{LANES, Lanes};

/// Scores of `N` queries against some cells, to rows of `CHUNK_TOKENS`.
///
/// # Safety
/// `N` vectors of `dim`; the cells' keys are half floats; as many scores as they have tokens fit into each row.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes, const N: usize>(
    vectors: *const f32,
    dim: usize,
    cells: &[Cell],
    scores: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut first = 0;
        while first < cells.len() {
            let (cells, to) = (&cells[first..], scores.add(first * LANES));
            first += match (L::SUMS / N).min(cells.len()) {
                8.. if N == 1 => page_scores::<L, N, 8>(vectors, dim, cells, to),
                4.. => page_scores::<L, N, 4>(vectors, dim, cells, to),
                2.. => page_scores::<L, N, 2>(vectors, dim, cells, to),
                _ => page_scores::<L, N, 1>(vectors, dim, cells, to),
            };
        }
    }
}

/// Scores of `N` queries against the first `P` cells; gives back `P`.
#[inline(always)]
unsafe fn page_scores<L: Lanes, const N: usize, const P: usize>(
    vectors: *const f32,
    dim: usize,
    cells: &[Cell],
    scores: *mut f32,
) -> usize {
    // SAFETY: `dim` rows of 16 keys in every cell; otherwise as above.
    unsafe {
        let mut keys = [std::ptr::null::<u16>(); P];
        let mut values = [std::ptr::null::<u16>(); P];
        for p in 0..P {
            (keys[p], values[p]) = (cells[p].lines.cast(), cells[p].value_lines(dim).cast());
        }
        let mut sums = [[L::splat(0.0); N]; P];
        // Two dimensions are one cache line.
        for d in (0..dim).step_by(2) {
            for p in 0..P {
                prefetch(values[p].wrapping_add(d * LANES));
            }
            for d in [d, d + 1] {
                for p in 0..P {
                    let key = L::load_half(keys[p].add(d * LANES));
                    for n in 0..N {
                        sums[p][n] = L::fma(L::splat(*vectors.add(n * dim + d)), key, sums[p][n]);
                    }
                }
            }
        }
        for p in 0..P {
            for n in 0..N {
                L::store(scores.add(n * CHUNK_TOKENS + p * LANES), sums[p][n]);
            }
        }
    }
    P
}

/// Adds the values of the first `tokens` tokens of a chunk's cells, weighted for `N` queries, to `out`.
///
/// # Safety
/// `N` rows of `CHUNK_TOKENS` weights and of `dim` results; the cells' values are half floats.
#[inline(always)]
pub(super) unsafe fn add_values<L: Lanes, const N: usize>(
    weights: *const f32,
    tokens: usize,
    chunk: Chunk<'_>,
    dim: usize,
    out: *mut f32,
) {
    // SAFETY: `d` and the width are whole vectors within `dim`.
    unsafe {
        let mut d = 0;
        while d < dim {
            d += match (dim - d) / LANES {
                4.. if N * 4 <= L::SUMS => value_columns::<L, N, 4>(weights, tokens, chunk, dim, d, out),
                2.. if N * 2 <= L::SUMS => value_columns::<L, N, 2>(weights, tokens, chunk, dim, d, out),
                _ => value_columns::<L, N, 1>(weights, tokens, chunk, dim, d, out),
            };
        }
    }
}

/// `D` vectors of the result, from dimension `d` on; gives back how many dimensions these are.
#[inline(always)]
unsafe fn value_columns<L: Lanes, const N: usize, const D: usize>(
    weights: *const f32,
    tokens: usize,
    chunk: Chunk<'_>,
    dim: usize,
    d: usize,
    out: *mut f32,
) -> usize {
    // SAFETY: values of a page are 16 rows of `dim`. Cells beyond the last token are not read: they may hold
    // infinities, which no zero weight would mask.
    unsafe {
        let mut sums = [[L::splat(0.0); D]; N];
        for n in 0..N {
            for i in 0..D {
                sums[n][i] = L::load(out.add(n * dim + d + i * LANES));
            }
        }
        for (p, cell) in chunk.cells.iter().enumerate() {
            let values = cell.value_lines(dim).cast::<u16>().add(d);
            let next_keys = chunk.next.get(p).unwrap_or(cell).lines.cast::<u16>().wrapping_add(d);
            let weights = weights.add(p * LANES);
            for token in 0..PAGE_TOKENS.min(tokens.saturating_sub(p * PAGE_TOKENS)) {
                let mut row = [L::splat(0.0); D];
                for i in 0..D {
                    row[i] = L::load_half(values.add(token * dim + i * LANES));
                }
                for i in (0..D).step_by(2) {
                    prefetch(next_keys.wrapping_add(token * dim + i * LANES));
                }
                for n in 0..N {
                    let weight = L::splat(*weights.add(n * CHUNK_TOKENS + token));
                    for i in 0..D {
                        sums[n][i] = L::fma(weight, row[i], sums[n][i]);
                    }
                }
            }
        }
        for n in 0..N {
            for i in 0..D {
                L::store(out.add(n * dim + d + i * LANES), sums[n][i]);
            }
        }
    }
    D * LANES
}
