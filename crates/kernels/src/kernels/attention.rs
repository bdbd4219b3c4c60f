//! Attention of a few query vectors over one chunk of the pages of one KV head.
//!
//! Pages are read in place, each in its own format (`pages/layout.rs` says what stands where). There is one softmax for a
//! chunk whatever its pages are. Chunks have a fixed length and are merged in their order, so a query's result has the
//! same bits whichever thread takes which chunk, and whatever other queries are taken with it.

mod bytes;
mod cell;
mod channels;
mod half;
pub(super) mod integers;

pub(crate) use cell::{Cell, Chunk};

use std::mem::MaybeUninit;

use crate::kernels::rows::softcap;
use crate::lanes::{LANES, Lanes};
use ruvllm_runner::{KEY_GROUP, KeyFormat, PAGE_TOKENS, ValueFormat};

use integers::{Bytes, Nibbles};

/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: usize = 8;
/// Tokens of a chunk.
pub(crate) const CHUNK_TOKENS: usize = CHUNK_PAGES * PAGE_TOKENS;
/// Maximum number of query vectors per call.
pub(crate) const QUERIES_MAX: usize = 16;

/// The query vectors of a call.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    /// `[count, head_dim]`, already multiplied by the softmax scale.
    pub vectors: &'a [f32],
    /// The same once more, where there are keys that are not floats.
    pub rounded: QuantizedQueries,
    /// For each, which tokens of the chunk it sees; possibly none.
    pub visible: &'a [Visible],
    pub head_dim: usize,
    /// Scores `s` become `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
}

/// A range of tokens of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visible {
    pub start: usize,
    pub end: usize,
}

impl Visible {
    pub(crate) fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// Query vectors rounded to bytes, with a scale for each 32 dimensions. Vectors are padded with zeros to whole groups.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedQueries {
    /// `[count, padded]`
    pub codes: *const i8,
    /// `[count, groups]`
    pub scales: *const f32,
    /// Sums of the codes of each 16. `[count, groups, 2]`
    pub sums: *const i32,
}

impl QuantizedQueries {
    /// Those from number `first` on.
    #[inline(always)]
    pub(crate) fn from(self, first: usize, head_dim: usize) -> Self {
        let groups = first * head_dim.div_ceil(KEY_GROUP);
        Self {
            codes: self.codes.wrapping_add(groups * KEY_GROUP),
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

/// Maximum number of queries that are taken together: with more, loads of their numbers would keep the multipliers waiting.
const TOGETHER_MAX: usize = 8;

/// Runs code with `N` as the number of queries that are taken together: all, or as many as registers hold. Gives it back.
macro_rules! for_count {
    ($count:expr, $n:ident => $code:expr) => {
        for_count!($count, $n => $code; 1 2 3 4 5 6 7 8)
    };
    ($count:expr, $n:ident => $code:expr; $($number:literal)*) => {
        match $count.min(L::SUMS).min(TOGETHER_MAX) {
            $($number => {
                const $n: usize = $number;
                $code;
                $n
            })*
            _ => unreachable!("no queries"),
        }
    };
}
use for_count;

/// Attention over one chunk, with a softmax of its own.
///
/// # Safety
/// At most `QUERIES_MAX` queries and `CHUNK_PAGES` pages, `head_dim` a multiple of 16, the slices as long as described;
/// every `visible` ends within the chunk's cells, and one is not empty; all cells are valid; the instruction set of `L` is
/// there.
#[inline(always)]
pub(crate) unsafe fn attend_chunk<L: Lanes>(queries: Queries<'_>, chunk: Chunk<'_>, mut out: Partial<'_>) {
    let count = queries.visible.len();
    let dim = queries.head_dim;
    let seen_max = queries.visible.iter().map(|visible| visible.end).max().unwrap_or(0);
    let chunk = Chunk { cells: &chunk.cells[..seen_max.div_ceil(PAGE_TOKENS)], ..chunk };
    // Scores of the chunk, later weights: a row for each query, and in it as many as there are pages for.
    let mut room = [const { MaybeUninit::<[f32; CHUNK_TOKENS]>::uninit() }; QUERIES_MAX];
    let rows = room.as_mut_ptr().cast::<f32>();
    // SAFETY: all reads stay within the cells; there is a row for every query, filled before it is read.
    unsafe {
        for (first, run) in runs(chunk.cells, |cell| cell.format.keys) {
            run_scores::<L>(&queries, run, rows.add(first * PAGE_TOKENS));
        }
        if let Some(cap) = queries.softcap {
            for q in 0..count {
                softcap::<L>(
                    cap,
                    std::slice::from_raw_parts_mut(rows.add(q * CHUNK_TOKENS), chunk.cells.len() * LANES),
                );
            }
        }
        softmax::<L>(rows, queries.visible, chunk.cells.len(), &mut out);
        out.sums.fill(0.0);
        for (first, run) in runs(chunk.cells, |cell| cell.format.values) {
            let run = Chunk { cells: run, next: chunk.next.get(first..).unwrap_or(&[]) };
            let mut visible = [0; QUERIES_MAX];
            for (visible, seen) in visible.iter_mut().zip(queries.visible) {
                *visible = seen.end.saturating_sub(first * PAGE_TOKENS);
            }
            add_values::<L>(rows.add(first * PAGE_TOKENS), &visible[..count], run, dim, out.sums.as_mut_ptr());
        }
    }
}

/// Scores of all queries against cells whose keys are alike.
///
/// # Safety
/// The cells are valid and not none; rows of `CHUNK_TOKENS` have room for them; otherwise as `attend_chunk`.
#[inline(always)]
unsafe fn run_scores<L: Lanes>(queries: &Queries<'_>, cells: &[Cell], scores: *mut f32) {
    let (count, dim) = (queries.visible.len(), queries.head_dim);
    let (format, vectors) = (cells[0].format.keys, queries.vectors.as_ptr());
    // SAFETY: `N` queries are there; otherwise the caller's promise.
    unsafe {
        let mut q = 0;
        match format {
            KeyFormat::F16 => {
                while q < count {
                    let (vectors, to) = (vectors.add(q * dim), scores.add(q * CHUNK_TOKENS));
                    q += for_count!(count - q, N => half::scores::<L, N>(vectors, dim, cells, to));
                }
            }
            KeyFormat::Q8 => {
                while q < count {
                    let (vectors, to) = (queries.rounded.from(q, dim), scores.add(q * CHUNK_TOKENS));
                    q += for_count!(count - q, N => bytes::scores::<L, N>(vectors, dim, cells, to));
                }
            }
            KeyFormat::Q6 | KeyFormat::Q4 => {
                channels::scores::<L>(format, vectors, queries.rounded, count, dim, cells, scores);
            }
        }
    }
}

/// Adds values that are alike, weighted for queries that see the first `visible` tokens, to their rows of `out`.
///
/// # Safety
/// The cells are valid and not none; as many rows of weights and results as queries; otherwise as `attend_chunk`.
#[inline(always)]
unsafe fn add_values<L: Lanes>(weights: *const f32, visible: &[usize], run: Chunk<'_>, dim: usize, out: *mut f32) {
    let count = visible.len();
    // SAFETY: `N` queries are there; otherwise the caller's promise.
    unsafe {
        match run.cells[0].format.values {
            ValueFormat::F16 => {
                let tokens = visible.iter().copied().max().unwrap_or(0);
                let mut q = 0;
                while q < count {
                    let (weights, to) = (weights.add(q * CHUNK_TOKENS), out.add(q * dim));
                    q += for_count!(count - q, N => half::add_values::<L, N>(weights, tokens, run, dim, to));
                }
            }
            ValueFormat::Q8 => integers::add_values::<L, Bytes>(weights, visible, run, dim, out),
            ValueFormat::Q4 => integers::add_values::<L, Nibbles>(weights, visible, run, dim, out),
        }
    }
}

/// Neighbouring cells that are alike, and the number of the first.
fn runs<F: PartialEq>(cells: &[Cell], format: impl Fn(&Cell) -> F + Copy) -> impl Iterator<Item = (usize, &[Cell])> {
    let mut first = 0;
    cells.chunk_by(move |a, b| format(a) == format(b)).map(move |run| {
        let at = first;
        first += run.len();
        (at, run)
    })
}

/// A half float that is no less than zero and finite.
#[inline(always)]
pub(super) unsafe fn positive_half(at: *const u8) -> f32 {
    /// Between the exponents of the two kinds of floats.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    // SAFETY: the caller gives two bytes.
    let bits = u16::from_le_bytes(unsafe { at.cast::<[u8; 2]>().read() });
    f32::from_bits(u32::from(bits) << 13) * SCALE
}

/// Turns each row's scores of the tokens that its query sees into weights relative to the highest, and those of the other
/// tokens of `pages` pages into nothing. Leaves the highest score and the sum of the weights in `out`.
#[inline(always)]
unsafe fn softmax<L: Lanes>(rows: *mut f32, visible: &[Visible], pages: usize, out: &mut Partial<'_>) {
    // Steps of their own for all rows: the way from a vector to one number is long, and rows need not wait for each other.
    // SAFETY: whole vectors within the rows.
    unsafe {
        for (q, visible) in visible.iter().enumerate() {
            let row = rows.add(q * CHUNK_TOKENS);
            for token in (0..visible.start.min(pages * LANES)).chain(visible.end..pages * LANES) {
                *row.add(token) = f32::NEG_INFINITY;
            }
            let mut most = L::splat(f32::NEG_INFINITY);
            for p in 0..pages {
                most = L::max(most, L::load(row.add(p * LANES)));
            }
            out.largest[q] = L::largest(most);
        }
        for (q, visible) in visible.iter().enumerate() {
            let row = rows.add(q * CHUNK_TOKENS);
            if visible.is_empty() {
                row.write_bytes(0, pages * LANES);
                out.total[q] = 0.0;
                continue;
            }
            let largest = L::splat(out.largest[q]);
            let mut sum = L::splat(0.0);
            for p in 0..pages {
                let at = row.add(p * LANES);
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
