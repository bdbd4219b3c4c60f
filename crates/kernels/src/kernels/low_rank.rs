//! Products with the two thin matrices of an adapter, in half floats with 32-bit sums.
//!
//! Several rows at once share the loads of weights. A row's sums are added in the same order whatever their number.

use crate::lanes::{LANES, Lanes};

/// Ranks whose products with a row are computed at once. The first matrix has whole groups of them.
pub(crate) const RANKS: usize = 4;
/// Rows that a call takes at most.
pub(crate) const ROWS: usize = 4;
/// Tiles of 16 results that are computed at once where there are as many.
const TILES: usize = 4;

/// `[f32; RANKS]` products of each row `x` with `RANKS` neighbouring rows of the first matrix, `stride` numbers apart.
///
/// # Safety
/// Each `x` has `cols` numbers, and the rows of `a` as many, then zeros up to a whole vector; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn project<L: Lanes, const N: usize>(
    a: *const u16,
    stride: usize,
    cols: usize,
    x: [*const f32; N],
) -> [[f32; RANKS]; N] {
    // SAFETY: whole vectors of `x` lie within `cols`, and what is left of it is copied; rows of `a` are padded.
    unsafe {
        let mut sums = [[L::splat(0.0); RANKS]; N];
        let whole = cols / LANES * LANES;
        let mut rest = [[0.0f32; LANES]; N];
        for t in 0..N {
            rest[t].as_mut_ptr().copy_from_nonoverlapping(x[t].add(whole), cols - whole);
        }
        let mut i = 0;
        while i < cols {
            let mut weights = [L::splat(0.0); RANKS];
            for rank in 0..RANKS {
                weights[rank] = L::load_half(a.add(rank * stride + i));
            }
            for t in 0..N {
                let x = L::load(if i < whole { x[t].add(i) } else { rest[t].as_ptr() });
                for rank in 0..RANKS {
                    sums[t][rank] = L::fma(weights[rank], x, sums[t][rank]);
                }
            }
            i += LANES;
        }
        let mut products = [[0.0; RANKS]; N];
        for t in 0..N {
            for rank in 0..RANKS {
                products[t][rank] = L::sum(sums[t][rank]);
            }
        }
        products
    }
}

/// Adds to each row of `to` the products of the second matrix with `h`, for `tiles` tiles of 16 results.
///
/// # Safety
/// `b` holds `tiles` tiles, `[ranks, 16]` each; each `h` has `ranks` numbers, and each `to` room for the results; the instruction
/// set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn expand<L: Lanes, const N: usize>(
    b: *const u16,
    ranks: usize,
    tiles: usize,
    h: [*const f32; N],
    to: [*mut f32; N],
) {
    // SAFETY: the caller's promise covers each group of tiles.
    unsafe {
        let together = tiles / TILES * TILES;
        let mut tile = 0;
        while tile < together {
            expand_tiles::<L, N, TILES>(b.add(tile * ranks * LANES), ranks, h, to, tile * LANES);
            tile += TILES;
        }
        while tile < tiles {
            expand_tiles::<L, N, 1>(b.add(tile * ranks * LANES), ranks, h, to, tile * LANES);
            tile += 1;
        }
    }
}

/// # Safety
/// As `expand`, for `T` tiles whose results begin at `first`.
#[inline(always)]
unsafe fn expand_tiles<L: Lanes, const N: usize, const T: usize>(
    b: *const u16,
    ranks: usize,
    h: [*const f32; N],
    to: [*mut f32; N],
    first: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[L::splat(0.0); T]; N];
        for t in 0..N {
            for tile in 0..T {
                sums[t][tile] = L::load(to[t].add(first + tile * LANES));
            }
        }
        for rank in 0..ranks {
            let mut weights = [L::splat(0.0); T];
            for tile in 0..T {
                weights[tile] = L::load_half(b.add((tile * ranks + rank) * LANES));
            }
            for t in 0..N {
                let h = L::splat(*h[t].add(rank));
                for tile in 0..T {
                    sums[t][tile] = L::fma(weights[tile], h, sums[t][tile]);
                }
            }
        }
        for t in 0..N {
            for tile in 0..T {
                L::store(to[t].add(first + tile * LANES), sums[t][tile]);
            }
        }
    }
}
