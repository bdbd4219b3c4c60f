//! Products with the two thin matrices of an adapter, in half floats with 32-bit sums.
//!
//! Several rows at once share the loads of weights. A row's sums are added in the same order whatever their number.

use crate::lanes::{LANES, Lanes};

/// Ranks whose products with a row are computed in one call. The first matrix has whole groups of them.
pub(crate) const RANKS: usize = 4;
/// Rows that a call takes at most.
pub(crate) const ROWS: usize = 12;
/// From so many sums in registers on, blocks are as large as for 32 registers of 16 lanes.
const SUMS_MANY: usize = 16;

/// Writes the products of each row `x` with `RANKS` neighbouring rows of the first matrix, `stride` numbers apart. Blocks are such
/// that their sums stay in registers; of many rows they are high, as each number of the matrix is converted once for all of them.
///
/// # Safety
/// Each `x` has `cols` numbers, and the rows of `a` as many, then zeros up to a whole vector; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn project<L: Lanes>(
    a: *const u16,
    stride: usize,
    cols: usize,
    x: &[*const f32],
    out: &mut [[f32; RANKS]; ROWS],
) {
    let mut first = 0;
    while first < x.len() {
        let (x, out) = (&x[first..], &mut out[first..]);
        // SAFETY: the caller's promise covers each of the rows.
        first += unsafe {
            match x.len() {
                12.. if L::SUMS >= SUMS_MANY => project_rows::<L, 12, 2>(a, stride, cols, x, out),
                4.. if L::SUMS >= SUMS_MANY => project_rows::<L, 4, 4>(a, stride, cols, x, out),
                2.. => project_rows::<L, 2, 2>(a, stride, cols, x, out),
                _ => project_rows::<L, 1, 4>(a, stride, cols, x, out),
            }
        };
    }
}

/// Does so for the first `N` rows, `R` ranks at once. Returns `N`.
///
/// # Safety
/// As `project`; there are `N` rows.
#[inline(always)]
unsafe fn project_rows<L: Lanes, const N: usize, const R: usize>(
    a: *const u16,
    stride: usize,
    cols: usize,
    x: &[*const f32],
    out: &mut [[f32; RANKS]],
) -> usize {
    let x: &[*const f32; N] = x.first_chunk().expect("as many rows");
    let whole = cols / LANES * LANES;
    // SAFETY: whole vectors of `x` lie within `cols`, and what is left of it is copied; rows of `a` are padded.
    unsafe {
        for first in (0..RANKS).step_by(R) {
            let a = a.add(first * stride);
            let mut sums = [[L::splat(0.0); R]; N];
            let mut i = 0;
            while i < whole {
                add_columns::<L, N, R>(&mut sums, a.add(i), stride, |t| x[t].add(i));
                i += LANES;
            }
            if whole < cols {
                let mut rest = [[0.0f32; LANES]; N];
                for t in 0..N {
                    rest[t].as_mut_ptr().copy_from_nonoverlapping(x[t].add(whole), cols - whole);
                }
                add_columns::<L, N, R>(&mut sums, a.add(whole), stride, |t| rest[t].as_ptr());
            }
            for t in 0..N {
                for rank in 0..R {
                    out[t][first + rank] = L::sum(sums[t][rank]);
                }
            }
        }
    }
    N
}

/// Adds the products of one vector of each row with one of each rank.
///
/// # Safety
/// There are 16 numbers behind each pointer; the instruction set of `L` is there.
#[inline(always)]
unsafe fn add_columns<L: Lanes, const N: usize, const R: usize>(
    sums: &mut [[L::F; R]; N],
    a: *const u16,
    stride: usize,
    x: impl Fn(usize) -> *const f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut weights = [L::splat(0.0); R];
        for rank in 0..R {
            weights[rank] = L::load_half(a.add(rank * stride));
        }
        for t in 0..N {
            let x = L::load(x(t));
            for rank in 0..R {
                sums[t][rank] = L::fma(weights[rank], x, sums[t][rank]);
            }
        }
    }
}

/// Adds to each row of `to` the products of the second matrix with `h`, for `tiles` tiles of 16 results.
///
/// # Safety
/// `b` holds `tiles` tiles, `[ranks, 16]` each; each `h` has `ranks` numbers, and each `to` room for the results; there are as many
/// of both; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn expand<L: Lanes>(b: *const u16, ranks: usize, tiles: usize, h: &[*const f32], to: &[*mut f32]) {
    let mut first = 0;
    while first < h.len() {
        let (h, to) = (&h[first..], &to[first..]);
        // SAFETY: the caller's promise covers each of the rows.
        first += unsafe {
            match h.len() {
                8.. if L::SUMS >= SUMS_MANY => expand_rows::<L, 8, 2>(b, ranks, tiles, h, to),
                4.. if L::SUMS >= SUMS_MANY => expand_rows::<L, 4, 4>(b, ranks, tiles, h, to),
                2.. => expand_rows::<L, 2, 2>(b, ranks, tiles, h, to),
                _ => expand_rows::<L, 1, 4>(b, ranks, tiles, h, to),
            }
        };
    }
}

/// Does so for the first `N` rows, `T` tiles at once where there are as many. Returns `N`.
///
/// # Safety
/// As `expand`; there are `N` rows.
#[inline(always)]
unsafe fn expand_rows<L: Lanes, const N: usize, const T: usize>(
    b: *const u16,
    ranks: usize,
    tiles: usize,
    h: &[*const f32],
    to: &[*mut f32],
) -> usize {
    let (h, to) = (*h.first_chunk().expect("as many rows"), *to.first_chunk().expect("as many rows"));
    let together = tiles / T * T;
    // SAFETY: the caller's promise covers each group of tiles.
    unsafe {
        for tile in (0..together).step_by(T) {
            expand_tiles::<L, N, T>(b.add(tile * ranks * LANES), ranks, h, to, tile * LANES);
        }
        for tile in together..tiles {
            expand_tiles::<L, N, 1>(b.add(tile * ranks * LANES), ranks, h, to, tile * LANES);
        }
    }
    N
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
