//! Attention of a few query vectors over one chunk of the pages of one KV head.
//!
//! A page holds 16 tokens: keys as `[head_dim, 16]`, so that a vector is one dimension of all its tokens, values as
//! `[16, head_dim]`. Both are half floats and read in place.
//! Chunks have a fixed length and are merged in their order, so a query's result has the same bits whichever thread
//! takes which chunk, and whatever other queries are taken with it.

use super::prefetch;
use crate::lanes::{LANES, Lanes};

/// Tokens per KV page.
pub(crate) const PAGE_TOKENS: usize = LANES;
/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: usize = 8;
/// Tokens of a chunk.
pub(crate) const CHUNK_TOKENS: usize = CHUNK_PAGES * PAGE_TOKENS;
/// Query vectors per call at most.
pub(crate) const QUERIES_MAX: usize = 16;

/// The query vectors of a call.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    /// `[count, head_dim]`, already multiplied by the softmax scale.
    pub vectors: &'a [f32],
    /// For each, how many tokens it sees, from the first of the chunk; possibly none.
    pub visible: &'a [usize],
    pub head_dim: usize,
}

/// The pages of a chunk.
pub(crate) struct PageParts<'a> {
    /// Page numbers in the order of their tokens.
    pub pages: &'a [u32],
    /// Those of the chunks after it, whose keys are fetched while the values of this one are at work.
    pub next_pages: &'a [u32],
    /// Keys of this layer and head in page 0, and values likewise.
    pub keys: *const u16,
    pub values: *const u16,
    /// Elements from one page to the next.
    pub stride: usize,
}

/// What attention over some tokens has found, before the division by `total`.
pub(crate) struct Partial<'a> {
    /// The highest score of each query.
    pub largest: &'a mut [f32],
    /// The sum of `exp(score - largest)`.
    pub total: &'a mut [f32],
    /// The values so weighted. `[count, head_dim]`
    pub sums: &'a mut [f32],
}

impl<'a> Partial<'a> {
    /// The parts of `data`, which holds a maximum and a total for each query, then the sums.
    pub(crate) fn of(data: &'a mut [f32], queries: usize) -> Self {
        let (largest, rest) = data.split_at_mut(queries);
        let (total, sums) = rest.split_at_mut(queries);
        Self { largest, total, sums }
    }

    /// The state before any token.
    pub(crate) fn clear(&mut self) {
        self.largest.fill(f32::NEG_INFINITY);
        self.total.fill(0.0);
        self.sums.fill(0.0);
    }
}

/// Queries that are taken together at most: with more, loads of their numbers would keep the multipliers waiting.
const TOGETHER_MAX: usize = 8;

/// Runs code with `N` as the number of queries that are taken together: all, or as many as registers hold.
macro_rules! for_count {
    ($count:expr, $n:ident => $code:expr) => {
        for_count!($count, $n => $code; 1 2 3 4 5 6 7 8)
    };
    ($count:expr, $n:ident => $code:expr; $($number:literal)*) => {
        match $count.min(L::SUMS).min(TOGETHER_MAX) {
            $($number => {
                const $n: usize = $number;
                $code
            })*
            _ => unreachable!("no queries"),
        }
    };
}

/// Scores of a chunk, later weights.
type Scores = [[f32; CHUNK_TOKENS]; QUERIES_MAX];

/// Attention over one chunk, with a softmax of its own.
///
/// # Safety
/// At most `QUERIES_MAX` queries and `CHUNK_PAGES` pages, `head_dim` a multiple of 16, the slices as long as described;
/// every `visible` is covered by `pages`, and one is not 0; keys and values are valid for every page; the instruction
/// set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn attend_chunk<L: Lanes>(queries: Queries<'_>, kv: PageParts<'_>, out: Partial<'_>) {
    let count = queries.visible.len();
    let dim = queries.head_dim;
    let seen_max = queries.visible.iter().copied().max().unwrap_or(0);
    let kv = PageParts { pages: &kv.pages[..seen_max.div_ceil(PAGE_TOKENS)], ..kv };
    let mut scores: Scores = [[0.0; CHUNK_TOKENS]; QUERIES_MAX];
    // SAFETY: all reads stay within the pages named; scores have room for a chunk of every query.
    unsafe {
        let mut q = 0;
        while q < count {
            let (vectors, to) = (queries.vectors.as_ptr().add(q * dim), &mut scores[q..]);
            q += for_count!(count - q, N => chunk_scores::<L, N>(vectors, dim, &kv, to));
        }
        for q in 0..count {
            (out.largest[q], out.total[q]) = softmax::<L>(&mut scores[q], queries.visible[q], kv.pages.len());
        }
        let mut q = 0;
        while q < count {
            let (weights, to) = (&scores[q..], out.sums.as_mut_ptr().add(q * dim));
            q += for_count!(count - q, N => weighted_values::<L, N>(weights, seen_max, &kv, dim, to));
        }
    }
}

/// Scores of `N` queries against all pages; gives back `N`.
#[inline(always)]
unsafe fn chunk_scores<L: Lanes, const N: usize>(
    vectors: *const f32,
    dim: usize,
    kv: &PageParts<'_>,
    scores: &mut [[f32; CHUNK_TOKENS]],
) -> usize {
    // SAFETY: `N` vectors of `dim`, and `dim` rows of 16 keys in every page.
    unsafe {
        let mut first = 0;
        while first < kv.pages.len() {
            first += match (L::SUMS / N).min(kv.pages.len() - first) {
                8.. if N == 1 => page_scores::<L, N, 8>(vectors, dim, kv, first, scores),
                4.. => page_scores::<L, N, 4>(vectors, dim, kv, first, scores),
                2.. => page_scores::<L, N, 2>(vectors, dim, kv, first, scores),
                _ => page_scores::<L, N, 1>(vectors, dim, kv, first, scores),
            };
        }
    }
    N
}

/// Scores of `N` queries against `P` pages from `first` on; gives back `P`.
#[inline(always)]
unsafe fn page_scores<L: Lanes, const N: usize, const P: usize>(
    vectors: *const f32,
    dim: usize,
    kv: &PageParts<'_>,
    first: usize,
    scores: &mut [[f32; CHUNK_TOKENS]],
) -> usize {
    // SAFETY: pages `first..first + P` are there; otherwise as above.
    unsafe {
        let mut keys = [kv.keys; P];
        for p in 0..P {
            keys[p] = kv.keys.add(kv.pages[first + p] as usize * kv.stride);
        }
        let mut sums = [[L::splat(0.0); N]; P];
        let to_values = kv.values.offset_from(kv.keys);
        // Two dimensions are one cache line.
        for d in (0..dim).step_by(2) {
            for p in 0..P {
                prefetch(keys[p].offset(to_values).add(d * LANES));
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
                L::store(scores[n].as_mut_ptr().add((first + p) * LANES), sums[p][n]);
            }
        }
    }
    P
}

/// Turns the first `tokens` scores into weights relative to the highest, and the rest of `pages` pages into nothing.
/// Gives the highest score and the sum of the weights.
#[inline(always)]
unsafe fn softmax<L: Lanes>(scores: &mut [f32; CHUNK_TOKENS], tokens: usize, pages: usize) -> (f32, f32) {
    if tokens == 0 {
        scores[..pages * LANES].fill(0.0);
        return (f32::NEG_INFINITY, 0.0);
    }
    scores[tokens..pages * LANES].fill(f32::NEG_INFINITY);
    // SAFETY: whole vectors within the array.
    unsafe {
        let mut most = L::splat(f32::NEG_INFINITY);
        for p in 0..pages {
            most = L::max(most, L::load(scores.as_ptr().add(p * LANES)));
        }
        let largest = L::largest(most);
        let mut sum = L::splat(0.0);
        for p in 0..pages {
            let at = scores.as_mut_ptr().add(p * LANES);
            let weight = L::exp(L::sub(L::load(at), L::splat(largest)));
            L::store(at, weight);
            sum = L::add(sum, weight);
        }
        (largest, L::sum(sum))
    }
}

/// The values of the first `tokens` tokens, weighted for `N` queries; gives back `N`.
#[inline(always)]
unsafe fn weighted_values<L: Lanes, const N: usize>(
    weights: &[[f32; CHUNK_TOKENS]],
    tokens: usize,
    kv: &PageParts<'_>,
    dim: usize,
    out: *mut f32,
) -> usize {
    // SAFETY: `d` and the width are whole vectors within `dim`.
    unsafe {
        let mut d = 0;
        while d < dim {
            d += match (dim - d) / LANES {
                4.. if N * 4 <= L::SUMS => value_columns::<L, N, 4>(weights, tokens, kv, dim, d, out),
                2.. if N * 2 <= L::SUMS => value_columns::<L, N, 2>(weights, tokens, kv, dim, d, out),
                _ => value_columns::<L, N, 1>(weights, tokens, kv, dim, d, out),
            };
        }
    }
    N
}

/// `D` vectors of the result, from dimension `d` on; gives back how many dimensions these are.
#[inline(always)]
unsafe fn value_columns<L: Lanes, const N: usize, const D: usize>(
    weights: &[[f32; CHUNK_TOKENS]],
    tokens: usize,
    kv: &PageParts<'_>,
    dim: usize,
    d: usize,
    out: *mut f32,
) -> usize {
    // SAFETY: values of a page are 16 rows of `dim`. Cells beyond the last token are not read: they may hold
    // infinities, which no zero weight would mask.
    unsafe {
        let mut sums = [[L::splat(0.0); D]; N];
        for (p, page) in kv.pages.iter().enumerate() {
            let values = kv.values.add(*page as usize * kv.stride + d);
            let next_keys = kv.keys.add(*kv.next_pages.get(p).unwrap_or(page) as usize * kv.stride + d);
            let weights = weights.as_ptr().cast::<f32>().add(p * LANES);
            for token in 0..PAGE_TOKENS.min(tokens - p * PAGE_TOKENS) {
                let mut row = [L::splat(0.0); D];
                for i in 0..D {
                    row[i] = L::load_half(values.add(token * dim + i * LANES));
                }
                for i in (0..D).step_by(2) {
                    prefetch(next_keys.add(token * dim + i * LANES));
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

/// Adds the result of the next chunk to what was found so far.
///
/// # Safety
/// Both are of as many queries of `head_dim` (a multiple of 16); the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn merge<L: Lanes>(so_far: Partial<'_>, next: Partial<'_>, head_dim: usize) {
    for q in 0..so_far.total.len() {
        // A query that sees nothing of the chunk; nor does it keep a chunk from being the first.
        if next.total[q] == 0.0 {
            continue;
        }
        let largest = so_far.largest[q].max(next.largest[q]);
        let old = (so_far.largest[q] - largest).exp();
        let new = (next.largest[q] - largest).exp();
        so_far.largest[q] = largest;
        so_far.total[q] = so_far.total[q] * old + next.total[q] * new;
        let (to, from) = (so_far.sums[q * head_dim..].as_mut_ptr(), next.sums[q * head_dim..].as_ptr());
        let mut d = 0;
        while d < head_dim {
            // SAFETY: whole vectors within the query's part.
            unsafe {
                let kept = L::mul(L::load(to.add(d)), L::splat(old));
                L::store(to.add(d), L::fma(L::load(from.add(d)), L::splat(new), kept));
            }
            d += LANES;
        }
    }
}
