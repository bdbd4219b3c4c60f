//! Attention of a few query vectors over the pages of one KV head, with one online softmax.
//!
//! A page holds 16 tokens: keys as `[head_dim, 16]`, so that a vector is one dimension of all its tokens, values as
//! `[16, head_dim]`. Both are half floats and read in place.

use crate::lanes::{LANES, Lanes};

/// Tokens per KV page.
pub(crate) const PAGE_TOKENS: usize = LANES;
/// Pages whose scores are taken together between two updates of the running maximum.
const BLOCK_PAGES: usize = 8;
/// Query vectors per call at most.
pub(crate) const QUERIES_MAX: usize = 16;

/// The query vectors of a call and where their results go.
pub(crate) struct Queries<'a> {
    /// `[count, head_dim]`, already multiplied by the softmax scale.
    pub vectors: &'a [f32],
    /// For each, how many tokens it sees.
    pub visible: &'a [usize],
    /// `[count, head_dim]`
    pub out: &'a mut [f32],
    pub head_dim: usize,
}

/// The pages that a call reads.
pub(crate) struct PageParts<'a> {
    /// Page numbers in the order of their tokens.
    pub pages: &'a [u32],
    /// Keys of this layer and head in page 0, and values likewise.
    pub keys: *const u16,
    pub values: *const u16,
    /// Elements from one page to the next.
    pub stride: usize,
}

/// # Safety
/// At most `QUERIES_MAX` queries, `head_dim` a multiple of 16, the slices as long as described; every `visible` is at
/// least 1 and covered by `pages`; keys and values are valid for every page; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn attend<L: Lanes>(queries: Queries<'_>, kv: PageParts<'_>) {
    let count = queries.visible.len();
    let dim = queries.head_dim;
    let seen_max = queries.visible.iter().copied().max().unwrap_or(0);
    let mut scores = [[0f32; BLOCK_PAGES * LANES]; QUERIES_MAX];
    let mut largest = [f32::NEG_INFINITY; QUERIES_MAX];
    let mut total = [0f32; QUERIES_MAX];
    queries.out.fill(0.0);
    for (block, pages) in kv.pages[..seen_max.div_ceil(PAGE_TOKENS)].chunks(BLOCK_PAGES).enumerate() {
        let first_token = block * BLOCK_PAGES * PAGE_TOKENS;
        // SAFETY: all reads stay within the pages named; scores have room for a block of every query.
        unsafe {
            for (p, page) in pages.iter().enumerate() {
                let keys = kv.keys.add(*page as usize * kv.stride);
                let mut q = 0;
                while q < count {
                    let vectors = queries.vectors.as_ptr().add(q * dim);
                    let to = &mut scores[q..];
                    q += match count - q {
                        1 => page_scores::<L, 1>(vectors, dim, keys, to, p),
                        2 => page_scores::<L, 2>(vectors, dim, keys, to, p),
                        3 => page_scores::<L, 3>(vectors, dim, keys, to, p),
                        _ => page_scores::<L, 4>(vectors, dim, keys, to, p),
                    };
                }
            }
            for q in 0..count {
                let tokens = queries.visible[q].saturating_sub(first_token).min(pages.len() * PAGE_TOKENS);
                let (grown, sum) = softmax_block::<L>(&mut scores[q], tokens, pages.len(), &mut largest[q]);
                total[q] = total[q] * grown + sum;
                if grown != 1.0 {
                    queries.out[q * dim..][..dim].iter_mut().for_each(|v| *v *= grown);
                }
            }
            // Cells beyond the last token may hold anything, even infinities, which no zero weight would mask.
            let tokens = seen_max - first_token;
            let mut q = 0;
            while q < count {
                let to = queries.out.as_mut_ptr().add(q * dim);
                let weights = &scores[q..];
                q += match count - q {
                    1 => add_values::<L, 1>(weights, pages, tokens, &kv, dim, to),
                    2 => add_values::<L, 2>(weights, pages, tokens, &kv, dim, to),
                    3 => add_values::<L, 3>(weights, pages, tokens, &kv, dim, to),
                    _ => add_values::<L, 4>(weights, pages, tokens, &kv, dim, to),
                };
            }
        }
    }
    for (q, total) in total[..count].iter().enumerate() {
        queries.out[q * dim..][..dim].iter_mut().for_each(|v| *v /= total);
    }
}

/// Scores of `N` queries against the 16 tokens of a page; gives back `N`.
#[inline(always)]
unsafe fn page_scores<L: Lanes, const N: usize>(
    vectors: *const f32,
    dim: usize,
    keys: *const u16,
    scores: &mut [[f32; BLOCK_PAGES * LANES]],
    page: usize,
) -> usize {
    // SAFETY: `N` vectors of `dim` and `dim` rows of 16 keys.
    unsafe {
        let mut sums = [L::splat(0.0); N];
        for d in 0..dim {
            let key = L::load_half(keys.add(d * LANES));
            for n in 0..N {
                sums[n] = L::fma(L::splat(*vectors.add(n * dim + d)), key, sums[n]);
            }
        }
        for n in 0..N {
            L::store(scores[n].as_mut_ptr().add(page * LANES), sums[n]);
        }
    }
    N
}

/// Turns the first `tokens` scores into weights relative to the running maximum and the rest into (nearly) nothing.
/// Gives the factor for what was summed so far, and the sum of the new weights.
#[inline(always)]
unsafe fn softmax_block<L: Lanes>(
    scores: &mut [f32; BLOCK_PAGES * LANES],
    tokens: usize,
    pages: usize,
    largest: &mut f32,
) -> (f32, f32) {
    scores[tokens..pages * LANES].fill(f32::NEG_INFINITY);
    if tokens == 0 {
        scores[..pages * LANES].fill(0.0);
        return (1.0, 0.0);
    }
    // SAFETY: whole vectors within the array.
    unsafe {
        let mut most = L::splat(*largest);
        for p in 0..pages {
            most = L::max(most, L::load(scores.as_ptr().add(p * LANES)));
        }
        let most = L::largest(most);
        let grown = if *largest == most { 1.0 } else { (*largest - most).exp() };
        *largest = most;
        let mut sum = L::splat(0.0);
        for p in 0..pages {
            let at = scores.as_mut_ptr().add(p * LANES);
            let weight = L::exp(L::sub(L::load(at), L::splat(most)));
            L::store(at, weight);
            sum = L::add(sum, weight);
        }
        (grown, L::sum(sum))
    }
}

/// Adds the weighted values of a block of pages to `N` results; gives back `N`.
#[inline(always)]
unsafe fn add_values<L: Lanes, const N: usize>(
    weights: &[[f32; BLOCK_PAGES * LANES]],
    pages: &[u32],
    tokens: usize,
    kv: &PageParts<'_>,
    dim: usize,
    out: *mut f32,
) -> usize {
    // SAFETY: `dim` is whole vectors; values of a page are 16 rows of `dim`.
    unsafe {
        let mut d = 0;
        while d < dim {
            let mut sums = [L::splat(0.0); N];
            for n in 0..N {
                sums[n] = L::load(out.add(n * dim + d));
            }
            for (p, page) in pages.iter().enumerate() {
                let values = kv.values.add(*page as usize * kv.stride + d);
                for token in 0..PAGE_TOKENS.min(tokens - p * PAGE_TOKENS) {
                    let value = L::load_half(values.add(token * dim));
                    for n in 0..N {
                        sums[n] = L::fma(L::splat(weights[n][p * LANES + token]), value, sums[n]);
                    }
                }
            }
            for n in 0..N {
                L::store(out.add(n * dim + d), sums[n]);
            }
            d += LANES;
        }
    }
    N
}
