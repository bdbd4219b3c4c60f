//! Values as bytes or nibbles, times weights as integers.
//!
//! A token's scale is multiplied into its weight. What comes out is rounded to 15 bits, relative to a weight of 1 and
//! the largest scale that the query sees, so that the products of all pages are added up as integers.
//! Tokens that a query does not see have no part in this: what stands there may be anything.

use std::mem::MaybeUninit;

use super::{CHUNK_PAGES, CHUNK_TOKENS, Cell, Chunk, QUERIES_MAX, TOGETHER_MAX, for_count, positive_half};
use crate::kernels::append::HEAD_DIM_MAX;
use crate::kernels::prefetch;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{PAGE_TOKENS, VALUE_GROUP, ZERO_POINTS_BYTES};

/// The largest weight. The sum of a chunk's products with bytes fits 32 bits.
const WEIGHT_MAX: f32 = 32767.0;
const GROUPS_MAX: usize = HEAD_DIM_MAX / VALUE_GROUP;

/// A format of integer values.
pub(in crate::kernels) trait Codes {
    /// Lines of 16 dimensions and all tokens.
    const LINES: usize;
    /// Whether tokens have zero points.
    const HAS_ZEROS: bool;

    /// The scales of a page's tokens for a group of dimensions.
    ///
    /// # Safety
    /// The cell's values are of this format, and there is such a group.
    unsafe fn scales<L: Lanes>(cell: &Cell, head_dim: usize, group: usize) -> L::F;

    /// Their zero points in sixteenths, where there are any.
    ///
    /// # Safety
    /// As for `scales`.
    #[inline(always)]
    unsafe fn zeros<L: Lanes>(_cell: &Cell, _head_dim: usize, _group: usize) -> L::F {
        unreachable!("no zero points")
    }

    /// A pair of tokens, one of four of a half of the page, in each of 16 dimensions, whose lines these are.
    ///
    /// # Safety
    /// There are `LINES` lines.
    unsafe fn tokens<L: Lanes>(lines: *const u8, half: usize, pair: usize) -> L::W;
}

pub(in crate::kernels) struct Bytes;

impl Codes for Bytes {
    const LINES: usize = 4;
    const HAS_ZEROS: bool = false;

    #[inline(always)]
    unsafe fn scales<L: Lanes>(cell: &Cell, head_dim: usize, group: usize) -> L::F {
        // SAFETY: 16 half floats for each group.
        unsafe { L::load_half(cell.value_scales(head_dim).cast::<u16>().add(group * LANES)) }
    }

    #[inline(always)]
    unsafe fn tokens<L: Lanes>(lines: *const u8, half: usize, pair: usize) -> L::W {
        // SAFETY: 32 bytes for each pair.
        unsafe { L::load_words(lines.add(half * 128 + pair * 32).cast()) }
    }
}

pub(in crate::kernels) struct Nibbles;

impl Codes for Nibbles {
    const LINES: usize = 2;
    const HAS_ZEROS: bool = true;

    #[inline(always)]
    unsafe fn scales<L: Lanes>(cell: &Cell, head_dim: usize, group: usize) -> L::F {
        // SAFETY: for each group 16 scales, 16 zero points, then a half float.
        unsafe {
            let group = cell.value_scales(head_dim).add(group * ZERO_POINTS_BYTES);
            L::mul(L::load_u8(group), L::splat(positive_half(group.add(2 * PAGE_TOKENS))))
        }
    }

    #[inline(always)]
    unsafe fn zeros<L: Lanes>(cell: &Cell, head_dim: usize, group: usize) -> L::F {
        // SAFETY: as above.
        unsafe { L::load_u8(cell.value_scales(head_dim).add(group * ZERO_POINTS_BYTES + PAGE_TOKENS)) }
    }

    #[inline(always)]
    unsafe fn tokens<L: Lanes>(lines: *const u8, half: usize, pair: usize) -> L::W {
        // SAFETY: a line for each half.
        unsafe { L::nibble_words(L::load_line(lines.add(half * 64)), pair) }
    }
}

/// Adds the values of a chunk's cells, weighted for queries that see the first `visible` tokens, to `out`.
///
/// # Safety
/// A row of `CHUNK_TOKENS` weights and of `dim` results for each of at most `QUERIES_MAX` queries; the cells' values are in
/// format `C`.
#[inline(always)]
pub(super) unsafe fn add_values<L: Lanes, C: Codes>(
    weights: *const f32,
    visible: &[usize],
    chunk: Chunk<'_>,
    dim: usize,
    out: *mut f32,
) {
    let mut integers = MaybeUninit::uninit();
    // SAFETY: `d` and the width are whole vectors within `dim`; otherwise the caller's promise.
    unsafe {
        let integers = Integers::put::<L, C>(&mut integers, weights, visible, chunk.cells, dim, out);
        let mut q = 0;
        while q < visible.len() {
            let mut d = 0;
            q += for_count!(visible.len() - q, N => while d < dim {
                d += match (dim - d) / LANES {
                    4.. if N * 4 <= L::SUMS => add_columns::<L, C, N, 4>(integers, q, chunk, dim, d, out),
                    2.. if N * 4 > L::SUMS => add_columns::<L, C, N, 2>(integers, q, chunk, dim, d, out),
                    _ => add_columns::<L, C, N, 1>(integers, q, chunk, dim, d, out),
                };
            });
        }
    }
}

/// The weights of a chunk as integers.
struct Integers {
    /// `[pages, groups, queries, tokens]`
    words: [[[i16; LANES]; QUERIES_MAX]; CHUNK_PAGES * GROUPS_MAX],
    /// What a unit is worth, for each query.
    units: [f32; QUERIES_MAX],
}

impl Integers {
    /// Fills in what belongs to these cells, and subtracts what their zero points come to from `out`.
    ///
    /// # Safety
    /// As for `add_values`.
    #[inline(always)]
    unsafe fn put<L: Lanes, C: Codes>(
        to: &mut MaybeUninit<Self>,
        weights: *const f32,
        visible: &[usize],
        cells: &[Cell],
        dim: usize,
        out: *mut f32,
    ) -> *const Self {
        let to = to.as_mut_ptr();
        let mut q = 0;
        // Mostly all queries see the same.
        for alike in visible.chunk_by(|a, b| a == b).flat_map(|alike| alike.chunks(4)) {
            // SAFETY: these queries exist from `q` on; otherwise the caller's promise.
            unsafe {
                match alike.len() {
                    4 => Self::put_queries::<L, C, 4>(to, q, weights, alike[0], cells, dim, out),
                    3 => Self::put_queries::<L, C, 3>(to, q, weights, alike[0], cells, dim, out),
                    2 => Self::put_queries::<L, C, 2>(to, q, weights, alike[0], cells, dim, out),
                    _ => Self::put_queries::<L, C, 1>(to, q, weights, alike[0], cells, dim, out),
                }
            }
            q += alike.len();
        }
        to
    }

    /// `put` for `M` queries from number `first` on, which see the same tokens.
    ///
    /// # Safety
    /// As for `add_values`; `alike` queries exist.
    #[inline(always)]
    unsafe fn put_queries<L: Lanes, C: Codes, const M: usize>(
        to: *mut Self,
        first: usize,
        weights: *const f32,
        visible: usize,
        cells: &[Cell],
        dim: usize,
        out: *mut f32,
    ) {
        let groups = dim.div_ceil(VALUE_GROUP);
        let seen = |p: usize| visible.saturating_sub(p * PAGE_TOKENS).min(PAGE_TOKENS);
        // SAFETY: in bounds, as there are at most `CHUNK_PAGES` cells; otherwise the caller's promise.
        unsafe {
            let mut most = L::splat(0.0);
            for (p, cell) in cells.iter().enumerate() {
                for g in 0..groups {
                    most = L::max(most, L::keep_first(C::scales::<L>(cell, dim, g), seen(p)));
                }
            }
            let most = L::largest(most);
            let (unit, inverse) = (most * (1.0 / WEIGHT_MAX), if most > 0.0 { WEIGHT_MAX / most } else { 0.0 });
            let words = (&raw mut (*to).words).cast::<i16>();
            let weights = weights.add(first * CHUNK_TOKENS);
            let mut zeros = [[L::splat(0.0); M]; GROUPS_MAX];
            for (p, cell) in cells.iter().enumerate() {
                for g in 0..groups {
                    let scales = L::keep_first(C::scales::<L>(cell, dim, g), seen(p));
                    let factors = L::mul(scales, L::splat(inverse));
                    let points = if C::HAS_ZEROS { C::zeros::<L>(cell, dim, g) } else { factors };
                    for m in 0..M {
                        let integers = L::mul(L::load(weights.add(m * CHUNK_TOKENS + p * LANES)), factors);
                        L::store_words(words.add(((p * groups + g) * QUERIES_MAX + first + m) * LANES), integers);
                        if C::HAS_ZEROS {
                            zeros[g][m] = L::fma(integers, points, zeros[g][m]);
                        }
                    }
                }
            }
            for m in 0..M {
                (*to).units[first + m] = unit;
                for d in (0..dim).step_by(LANES).filter(|_| C::HAS_ZEROS) {
                    let to = out.add((first + m) * dim + d);
                    let zero = L::sum(zeros[d / VALUE_GROUP][m]) * (unit / 16.0);
                    L::store(to, L::sub(L::load(to), L::splat(zero)));
                }
            }
        }
    }
}

/// Adds `D` vectors of values, from dimension `d` on, to the results of `N` queries from `q` on; gives back how many dimensions
/// these are.
#[inline(always)]
unsafe fn add_columns<L: Lanes, C: Codes, const N: usize, const D: usize>(
    integers: *const Integers,
    q: usize,
    chunk: Chunk<'_>,
    dim: usize,
    d: usize,
    out: *mut f32,
) -> usize {
    let groups = dim.div_ceil(VALUE_GROUP);
    let first = d / LANES * C::LINES * 64;
    // SAFETY: `LINES` lines for each vector; `D` vectors of results in each of `N` rows.
    unsafe {
        let words = (&raw const (*integers).words).cast::<i16>();
        let mut dots = [[L::splat_int(0); D]; N];
        let mut tokens = [C::tokens::<L>(chunk.cells[0].value_lines(dim), 0, 0); D];
        for (p, cell) in chunk.cells.iter().enumerate() {
            let lines = cell.value_lines(dim).add(first);
            // All columns are of one group: there are at most 4 vectors of them, and as many before as is a multiple.
            let group = p * groups + d / VALUE_GROUP;
            let next = chunk.next.get(p).unwrap_or(cell);
            prefetch(next.scales.wrapping_add(first / C::LINES));
            // Bytes of the next keys that are fetched with a line of values.
            let ahead = next.format.keys.line_bytes(LANES) / C::LINES;
            let next = next.lines.wrapping_add(first / 64 * ahead);
            for half in 0..2 {
                // With known numbers, so that shifts are by constants.
                macro_rules! pair {
                    ($pair:literal) => {
                        for i in 0..D {
                            tokens[i] = C::tokens::<L>(lines.add(i * C::LINES * 64), half, $pair);
                            if $pair % (8 / C::LINES) == 0 {
                                let line = (i * 8 + half * 4 + $pair) / (8 / C::LINES);
                                prefetch(next.wrapping_add(line * ahead));
                                if C::LINES == 2 {
                                    prefetch(next.wrapping_add(line * ahead + ahead / 2));
                                }
                            }
                        }
                        for n in 0..N {
                            let weights = words.add((group * QUERIES_MAX + q + n) * LANES + half * 8 + $pair * 2);
                            for i in 0..D {
                                dots[n][i] = L::dot_words(dots[n][i], tokens[i], weights);
                            }
                        }
                    };
                }
                pair!(0);
                pair!(1);
                pair!(2);
                pair!(3);
            }
        }
        for n in 0..N {
            let unit = L::splat((*integers).units[q + n]);
            for i in 0..D {
                let to = out.add((q + n) * dim + d + i * LANES);
                L::store(to, L::fma(L::to_float(dots[n][i]), unit, L::load(to)));
            }
        }
    }
    D * LANES
}
