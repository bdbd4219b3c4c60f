//! Attention of a few query vectors over one chunk of the pages of one KV head.
//!
//! Pages are read in place, each in its own format (`pages/layout.rs` says what stands where). There is one softmax for a
//! chunk whatever its pages are. Chunks have a fixed length and are merged in their order, so a query's result has the
//! same bits whichever thread takes which chunk, and whatever other queries are taken with it.

mod bytes;
mod cell;
mod channels;
mod half;
mod integers;

pub(crate) use cell::{Cell, Chunk};

use std::mem::MaybeUninit;

use crate::lanes::{LANES, Lanes};
use crate::pages::{GROUP, KeyFormat, PAGE_TOKENS, ValueFormat};

use integers::{Bytes, Nibbles};

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
    /// The same once more, where there are keys that are not floats.
    pub rounded: RoundedQueries,
    /// For each, how many tokens it sees, from the first of the chunk; possibly none.
    pub visible: &'a [usize],
    pub head_dim: usize,
}

/// Query vectors rounded to bytes, with a scale for each 32 dimensions. Vectors are padded with zeros to whole groups.
#[derive(Clone, Copy)]
pub(crate) struct RoundedQueries {
    /// `[count, padded]`
    pub codes: *const i8,
    /// `[count, groups]`
    pub scales: *const f32,
    /// Sums of the codes of each 16. `[count, groups, 2]`
    pub sums: *const i32,
}

impl RoundedQueries {
    /// Those from number `first` on.
    #[inline(always)]
    pub(crate) fn from(self, first: usize, head_dim: usize) -> Self {
        let groups = first * head_dim.div_ceil(GROUP);
        Self {
            codes: self.codes.wrapping_add(groups * GROUP),
            scales: self.scales.wrapping_add(groups),
            sums: self.sums.wrapping_add(groups * 2),
        }
    }
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

/// Attention over one chunk, with a softmax of its own.
///
/// # Safety
/// At most `QUERIES_MAX` queries and `CHUNK_PAGES` pages, `head_dim` a multiple of 16, the slices as long as described;
/// every `visible` is covered by the chunk's cells, and one is not 0; all cells are valid; the instruction set of `L` is
/// there.
#[inline(always)]
pub(crate) unsafe fn attend_chunk<L: Lanes>(queries: Queries<'_>, chunk: Chunk<'_>, mut out: Partial<'_>) {
    let count = queries.visible.len();
    let dim = queries.head_dim;
    let seen_max = queries.visible.iter().copied().max().unwrap_or(0);
    let chunk = Chunk { cells: &chunk.cells[..seen_max.div_ceil(PAGE_TOKENS)], ..chunk };
    // Scores of the chunk, later weights: so many rows as there are queries.
    let mut room = [const { MaybeUninit::<[f32; CHUNK_TOKENS]>::uninit() }; QUERIES_MAX];
    let rows = &mut room[..count];
    rows.iter_mut().for_each(|row| *row = MaybeUninit::zeroed());
    // SAFETY: all reads stay within the cells; scores have room for a chunk of every query.
    unsafe {
        let scores = rows.assume_init_mut();
        let mut q = 0;
        while q < count {
            q += for_count!(count - q, N => chunk_scores::<L, N>(&queries, q, &chunk, &mut scores[q..]));
        }
        softmax::<L>(scores, queries.visible, chunk.cells.len(), &mut out);
        out.sums.fill(0.0);
        let mut q = 0;
        while q < count {
            let (weights, seen) = (&scores[q..], &queries.visible[q..]);
            let to = out.sums.as_mut_ptr().add(q * dim);
            q += for_count!(count - q, N => weighted_values::<L, N>(weights, seen, seen_max, &chunk, dim, to));
        }
    }
}

/// Scores of `N` queries from `q` on against all cells; gives back `N`.
#[inline(always)]
unsafe fn chunk_scores<L: Lanes, const N: usize>(
    queries: &Queries<'_>,
    q: usize,
    chunk: &Chunk<'_>,
    scores: &mut [[f32; CHUNK_TOKENS]],
) -> usize {
    let dim = queries.head_dim;
    let rounded = queries.rounded.from(q, dim);
    let mut first = 0;
    while first < chunk.cells.len() {
        let format = chunk.cells[first].format.keys;
        let run = run(&chunk.cells[first..], |cell| cell.format.keys == format);
        // SAFETY: `N` vectors from `q` on; the run is within the chunk, and scores have room for it.
        unsafe {
            let vectors = queries.vectors.as_ptr().add(q * dim);
            let to = scores.as_mut_ptr().cast::<f32>().add(first * PAGE_TOKENS);
            match format {
                KeyFormat::F16 => half::scores::<L, N>(vectors, dim, run, to),
                KeyFormat::Q8 => bytes::scores::<L, N>(rounded, dim, run, to),
                KeyFormat::Q6 | KeyFormat::Q4 => {
                    channels::scores::<L, N>(format, vectors, rounded, dim, run, to);
                }
            }
        }
        first += run.len();
    }
    N
}

/// Adds the values of the first `tokens` tokens, weighted for `N` queries that see so many, to `out`; gives back `N`.
#[inline(always)]
unsafe fn weighted_values<L: Lanes, const N: usize>(
    weights: &[[f32; CHUNK_TOKENS]],
    visible: &[usize],
    tokens: usize,
    chunk: &Chunk<'_>,
    dim: usize,
    out: *mut f32,
) -> usize {
    let mut first = 0;
    while first < chunk.cells.len() {
        let format = chunk.cells[first].format.values;
        let run = run(&chunk.cells[first..], |cell| cell.format.values == format);
        let next = chunk.next.get(first..).unwrap_or(&[]);
        let before = first * PAGE_TOKENS;
        let visible: [usize; N] = std::array::from_fn(|n| visible[n].saturating_sub(before));
        let part = Chunk { cells: run, next };
        // SAFETY: `N` rows of weights and of results; the run is within the chunk.
        unsafe {
            let weights = weights.as_ptr().cast::<f32>().add(before);
            match format {
                ValueFormat::F16 => half::add_values::<L, N>(weights, tokens - before, part, dim, out),
                ValueFormat::Q8 => integers::add_values::<L, Bytes, N>(weights, visible, part, dim, out),
                ValueFormat::Q4 => integers::add_values::<L, Nibbles, N>(weights, visible, part, dim, out),
            }
        }
        first += run.len();
    }
    N
}

/// The first cells that are all `alike`.
fn run(cells: &[Cell], alike: impl Fn(&Cell) -> bool) -> &[Cell] {
    &cells[..cells.iter().position(|cell| !alike(cell)).unwrap_or(cells.len())]
}

/// A half float that is no less than zero and finite.
#[inline(always)]
unsafe fn positive_half(at: *const u8) -> f32 {
    /// Between the exponents of the two kinds of floats.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    // SAFETY: the caller gives two bytes.
    let bits = u16::from_le_bytes(unsafe { at.cast::<[u8; 2]>().read() });
    f32::from_bits(u32::from(bits) << 13) * SCALE
}

/// Turns each row's scores of the tokens that its query sees into weights relative to the highest, and those of the other
/// tokens of `pages` pages into nothing. Leaves the highest score and the sum of the weights in `out`.
#[inline(always)]
unsafe fn softmax<L: Lanes>(rows: &mut [[f32; CHUNK_TOKENS]], visible: &[usize], pages: usize, out: &mut Partial<'_>) {
    // Steps of their own for all rows: the way from a vector to one number is long, and rows need not wait for each other.
    // SAFETY: whole vectors within the rows.
    unsafe {
        for (q, row) in rows.iter_mut().enumerate() {
            row[visible[q]..pages * LANES].fill(f32::NEG_INFINITY);
            let mut most = L::splat(f32::NEG_INFINITY);
            for p in 0..pages {
                most = L::max(most, L::load(row.as_ptr().add(p * LANES)));
            }
            out.largest[q] = L::largest(most);
        }
        for (q, row) in rows.iter_mut().enumerate() {
            if visible[q] == 0 {
                row[..pages * LANES].fill(0.0);
                out.total[q] = 0.0;
                continue;
            }
            let largest = L::splat(out.largest[q]);
            let mut sum = L::splat(0.0);
            for p in 0..pages {
                let at = row.as_mut_ptr().add(p * LANES);
                let weight = L::exp(L::sub(L::load(at), largest));
                L::store(at, weight);
                sum = L::add(sum, weight);
            }
            out.total[q] = L::sum(sum);
        }
    }
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
        let difference = next.largest[q] - so_far.largest[q];
        let (old, new) = if difference > 0.0 { ((-difference).exp(), 1.0) } else { (1.0, difference.exp()) };
        so_far.largest[q] = so_far.largest[q].max(next.largest[q]);
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
