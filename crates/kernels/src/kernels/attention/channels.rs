//! Keys with a scale and an offset for each channel, in four or six bits.
//!
//! The scales of a page are multiplied into the queries, which are then rounded to bytes: so one integer product serves
//! all channels. The step of that rounding is fixed for a query and a group of channels: as the largest scale of a cell
//! is 255 of its factor, no product goes beyond the largest query times 255.

use std::mem::MaybeUninit;

use super::{CHUNK_TOKENS, Cell, QuantizedQueries, positive_half};
use crate::kernels::append::HEAD_DIM_MAX;
use crate::kernels::prefetch;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{KEY_GROUP, KeyFormat};

/// The largest byte of a scale.
const SCALE_MAX: f32 = 255.0;

/// Scores of `count` queries against some cells, to rows of `CHUNK_TOKENS`.
///
/// # Safety
/// So many queries of `dim`, as floats and rounded; the cells' keys are of `format`, which is Q4 or Q6; as many scores as
/// they have tokens fit into each row.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes>(
    format: KeyFormat,
    vectors: *const f32,
    rounded: QuantizedQueries,
    count: usize,
    dim: usize,
    cells: &[Cell],
    scores: *mut f32,
) {
    let mut n = 0;
    while n < count {
        // SAFETY: the caller's promise.
        unsafe {
            let (vectors, rounded, to) = (vectors.add(n * dim), rounded.from(n, dim), scores.add(n * CHUNK_TOKENS));
            n += match (format, count - n) {
                (KeyFormat::Q6, 4..) => some_scores::<L, 4, 6>(vectors, rounded, dim, cells, to),
                (KeyFormat::Q6, 2..) => some_scores::<L, 2, 6>(vectors, rounded, dim, cells, to),
                (KeyFormat::Q6, _) => some_scores::<L, 1, 6>(vectors, rounded, dim, cells, to),
                (_, 4..) => some_scores::<L, 4, 4>(vectors, rounded, dim, cells, to),
                (_, 2..) => some_scores::<L, 2, 4>(vectors, rounded, dim, cells, to),
                _ => some_scores::<L, 1, 4>(vectors, rounded, dim, cells, to),
            };
        }
    }
}

/// Scores of `N` queries; gives back `N`.
#[inline(always)]
unsafe fn some_scores<L: Lanes, const N: usize, const BITS: u32>(
    vectors: *const f32,
    rounded: QuantizedQueries,
    dim: usize,
    cells: &[Cell],
    scores: *mut f32,
) -> usize {
    let groups = dim.div_ceil(KEY_GROUP);
    let mut relative = [const { MaybeUninit::<[f32; HEAD_DIM_MAX]>::uninit() }; N];
    let relative = relative.as_mut_ptr().cast::<f32>();
    let mut queries = Queries { relative, vectors, steps: [[0.0; GROUPS_MAX]; N] };
    // SAFETY: the caller's promise.
    unsafe {
        for n in 0..N {
            for g in 0..groups {
                let step = *rounded.scales.add(n * groups + g) * SCALE_MAX;
                queries.steps[n][g] = step;
                let inverse = L::splat(if step > 1e-30 { 1.0 / step } else { 0.0 });
                for d in (g * KEY_GROUP..dim.min((g + 1) * KEY_GROUP)).step_by(LANES) {
                    let vector = L::load(vectors.add(n * dim + d));
                    L::store(relative.add(n * HEAD_DIM_MAX + d), L::mul(vector, inverse));
                }
            }
        }
        for (p, cell) in cells.iter().enumerate() {
            page_scores::<L, N, BITS>(&queries, dim, cell, scores.add(p * LANES));
        }
    }
    N
}

const GROUPS_MAX: usize = HEAD_DIM_MAX / KEY_GROUP;

/// Queries, and what the products with a scale's byte are rounded by.
struct Queries<const N: usize> {
    /// `[queries, head_dim]`
    vectors: *const f32,
    /// In steps of their group. `[queries, HEAD_DIM_MAX]`
    relative: *const f32,
    steps: [[f32; GROUPS_MAX]; N],
}

/// Scores of `N` queries against one cell of `BITS` bits.
#[inline(always)]
unsafe fn page_scores<L: Lanes, const N: usize, const BITS: u32>(
    queries: &Queries<N>,
    dim: usize,
    cell: &Cell,
    scores: *mut f32,
) {
    let zero = (1 << (BITS - 1)) as f32;
    let groups = dim.div_ceil(KEY_GROUP);
    let mut codes = [const { MaybeUninit::<[i8; HEAD_DIM_MAX]>::uninit() }; N];
    // SAFETY: a byte of scales and of offsets for each of `dim` channels, then two factors; lines as in the layout.
    unsafe {
        let offsets = cell.scales.add(dim).cast::<i8>();
        let factors = cell.scales.add(2 * dim);
        let [scale_factor, offset_factor] = [positive_half(factors), positive_half(factors.add(2))];
        let codes = codes.as_mut_ptr().cast::<i8>();
        // For each query, what its offsets and zero points come to, in parts.
        let mut offset_sums = [L::splat(0.0); N];
        let mut zero_sums = [L::splat(0.0); N];
        for d in (0..dim).step_by(LANES) {
            let scale = L::load_u8(cell.scales.add(d));
            let offset = L::load_i8(offsets.add(d));
            for n in 0..N {
                let product = L::round(L::mul(L::load(queries.relative.add(n * HEAD_DIM_MAX + d)), scale));
                L::store_i8(codes.add(n * HEAD_DIM_MAX + d), product);
                zero_sums[n] = L::fma(product, L::splat(queries.steps[n][d / KEY_GROUP]), zero_sums[n]);
                offset_sums[n] = L::fma(L::load(queries.vectors.add(n * dim + d)), offset, offset_sums[n]);
            }
        }
        let mut totals = [L::splat(0.0); N];
        for n in 0..N {
            let zeros = L::mul(zero_sums[n], L::splat(-zero * scale_factor));
            totals[n] = L::splat(L::sum(L::fma(offset_sums[n], L::splat(offset_factor), zeros)));
        }
        let pairs = cell.lines.add(KeyFormat::Q4.line_bytes(dim));
        for g in 0..groups {
            let (nibbles, pairs) = (cell.lines.add(g * 256), pairs.add(g * 128));
            let codes = codes.cast_const().add(g * KEY_GROUP);
            for line in (g..cell.format.values.line_bytes(dim) / 64).step_by(groups) {
                prefetch(cell.value_lines(dim).wrapping_add(line * 64));
            }
            let dots = if dim - g * KEY_GROUP < KEY_GROUP {
                group_dots::<L, N, BITS, 4>(nibbles, pairs, codes)
            } else {
                group_dots::<L, N, BITS, 8>(nibbles, pairs, codes)
            };
            for n in 0..N {
                let step = L::splat(queries.steps[n][g] * scale_factor);
                totals[n] = L::fma(L::to_float(dots[n]), step, totals[n]);
            }
        }
        for n in 0..N {
            L::store(scores.add(n * CHUNK_TOKENS), totals[n]);
        }
    }
}

/// A group of `QUADS` quads of channels times the rounded queries, which are rows of `HEAD_DIM_MAX`.
#[inline(always)]
unsafe fn group_dots<L: Lanes, const N: usize, const BITS: u32, const QUADS: usize>(
    nibbles: *const u8,
    pairs: *const u8,
    codes: *const i8,
) -> [L::I; N] {
    // SAFETY: so many lines, and four numbers for each quad.
    unsafe {
        let mut dots = [L::splat_int(0); N];
        for quad in 0..QUADS {
            let line = L::load_line(nibbles.add(quad % (QUADS / 2) * 64));
            let mut line = L::bits(line, (quad / (QUADS / 2) * 4) as i32, 15);
            if BITS == 6 {
                let pair = L::load_line(pairs.add(quad % (QUADS / 4) * 64));
                line = L::or(line, L::bits(pair, (quad / (QUADS / 4) * 2) as i32 - 4, 3 << 4));
            }
            for n in 0..N {
                dots[n] = L::dot(dots[n], line, codes.add(n * HEAD_DIM_MAX + quad * 4));
            }
        }
        dots
    }
}
