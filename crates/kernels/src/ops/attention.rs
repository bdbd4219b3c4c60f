//! Attention of a batch over the pages of its sequences.
//!
//! Work is cut into items (some rows of a sequence, one KV head) and these into chunks of tokens. Workers take equal runs
//! of chunks, so that one long sequence keeps all of them busy as well as many short ones do. The few items that fall to
//! more than one worker are put together after a barrier.

use std::ops::Range;

use super::append::append;
use super::kv_memory::Cells;
use super::matrix::Part;
use super::{Activations, Batch, HEAD_DIM_MAX, KvMemory, Matrix, PAGE_TOKENS, RopeTable, SequenceRows, own_rows};
use crate::kernels::attention::{
    CHUNK_PAGES, CHUNK_TOKENS, Cell, Chunk, Partial, QUERIES_MAX, Queries, RoundedQueries,
};
use crate::kernels::rows::Quantized;
use crate::threads::{Access, Buffer, Pool, Rounded, Scratch, Shared, Worker};
use crate::weights::GROUP;

/// What attention needs to know of a model.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    /// What scores are multiplied by, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// Room for the results of items that several workers share.
#[derive(Debug)]
pub struct SharedItems {
    /// `[workers, chunks, partial]`: an item's place is that of the worker with its first chunk.
    partials: Shared<f32>,
    chunks_max: usize,
    partial_len: usize,
}

impl SharedItems {
    /// For sequences of up to `context` tokens.
    pub fn new(pool: &Pool, kv: &KvMemory, shape: AttentionShape, context: usize) -> Self {
        let cut = Cut::new(kv, shape);
        let partial_len = cut.block_rows * cut.row_queries() * (kv.shape.head_dim + 2);
        let chunks_max = context.div_ceil(CHUNK_TOKENS);
        Self { partials: Shared::zeroed(pool, pool.threads() * chunks_max * partial_len), chunks_max, partial_len }
    }
}

/// Everything that the workers of a region know of one layer's attention.
pub struct Attention<'a> {
    pub qkv: &'a Matrix,
    pub batch: &'a Batch<'a>,
    pub rope: &'a RopeTable,
    pub kv: &'a KvMemory,
    pub layer: usize,
    pub shape: AttentionShape,
    pub shared: &'a SharedItems,
    pub out: &'a Activations,
}

impl Attention<'_> {
    /// Appends the keys and values of every row (the last parts of a row of `qkv`) to the pages, and lets its queries
    /// (the first part) attend to all tokens up to its own.
    pub fn run(&self, worker: &mut Worker<'_>) {
        let cut = Cut::new(self.kv, self.shape);
        assert_eq!(self.qkv.cols, (self.shape.heads + 2 * self.kv.shape.kv_heads) * self.kv.shape.head_dim);
        assert_eq!(self.out.cols(), self.shape.heads * self.kv.shape.head_dim);
        assert!(self.rope.dims() <= self.kv.shape.head_dim);
        // A single new token is seen by its own row only, so whoever attends to it can append it as well.
        let appended = self.batch.sequences().iter().any(|sequence| sequence.rows.len() > 1);
        if appended {
            self.append_rows(worker);
            worker.barrier();
        }
        let split = self.attend_own(worker, &cut, appended);
        if split {
            worker.barrier();
            self.put_together(worker, &cut);
        }
    }

    fn append_rows(&self, worker: &Worker<'_>) {
        for sequence in self.batch.sequences() {
            for row in own_rows(worker, sequence.rows.end).filter(|row| sequence.rows.contains(row)) {
                let heads = 0..self.kv.shape.kv_heads;
                // SAFETY: `Batch` lets no two sequences write one page, and rows have cells of their own.
                unsafe {
                    append(worker, Access::WriteRows, self.qkv, sequence, row, heads, self.rope, self.kv, self.layer);
                }
            }
        }
    }

    /// Does this worker's chunks. Tells whether any item is shared between workers.
    fn attend_own(&self, worker: &Worker<'_>, cut: &Cut, appended: bool) -> bool {
        let deal = Deal::new(self.batch, cut, worker.count());
        let mut scratch = worker.scratch();
        let mut any_split = false;
        let mut before = 0;
        for item in items(self.batch, cut) {
            let cost = item.cost(cut);
            let owners = deal.owner(before)..=deal.owner(before + (item.chunks() - 1) * cost);
            any_split |= owners.start() != owners.end();
            if owners.contains(&worker.index()) {
                let own = deal.own_chunks(before, cost, item.chunks(), worker.index());
                if !own.is_empty() {
                    if !appended && own.end == item.chunks() {
                        self.append_item(worker, &item);
                    }
                    let whole = owners.start() == owners.end();
                    let place = (!whole).then_some(*owners.start());
                    self.attend_item(worker, cut, &item, own, place, appended, &mut scratch);
                }
            }
            before += item.chunks() * cost;
        }
        any_split
    }

    fn append_item(&self, worker: &Worker<'_>, item: &Item<'_>) {
        // SAFETY: only the worker with an item's last chunk comes here, and each row and head is in one item.
        unsafe {
            append(
                worker,
                Access::WriteHeads,
                self.qkv,
                item.sequence,
                item.rows.start,
                item.kv_heads.clone(),
                self.rope,
                self.kv,
                self.layer,
            );
        }
    }

    /// Attends to some chunks of an item: to a result if these are all, else to the item's place among the shared.
    #[allow(clippy::too_many_arguments)]
    fn attend_item(
        &self,
        worker: &Worker<'_>,
        cut: &Cut,
        item: &Item<'_>,
        chunks: Range<usize>,
        place: Option<usize>,
        appended: bool,
        scratch: &mut Scratch,
    ) {
        let dim = self.kv.shape.head_dim;
        let queries = item.queries(cut);
        let len = queries * (dim + 2);
        let Scratch { queries: vectors, rounded, partial, result, .. } = scratch;
        self.take_queries(worker, cut, item, vectors);
        if self.kv.has_integer_keys() {
            round_queries(worker, vectors, dim, rounded);
        }
        result.resize(len);
        Partial::of(result, queries).clear();
        let mut window = Window::new(item);
        let start = self.start(worker, appended);
        for chunk in chunks {
            partial.resize(len);
            window.move_to(chunk, |head| self.kv.cells(start, self.layer, head));
            self.attend_chunk(worker, cut, &window, vectors, rounded, partial);
            match place {
                None => {
                    // SAFETY: both hold as many queries of `dim`.
                    unsafe {
                        (worker.kernels().merge)(Partial::of(result, queries), Partial::of(partial, queries), dim)
                    };
                }
                Some(place) => {
                    let at = (place * self.shared.chunks_max + chunk) * self.shared.partial_len;
                    assert!(chunk < self.shared.chunks_max && len <= self.shared.partial_len);
                    let start = self.shared.partials.write(worker, Access::WriteHeads);
                    // SAFETY: in bounds, and a chunk of an item belongs to one worker.
                    unsafe { start.add(at).copy_from_nonoverlapping(partial.as_ptr(), len) };
                }
            }
        }
        if place.is_none() {
            self.put_result(worker, cut, item, result, vectors);
        }
    }

    /// The item's queries, rotated and scaled: `[KV heads, rows, heads of the group, head_dim]`.
    fn take_queries(&self, worker: &Worker<'_>, cut: &Cut, item: &Item<'_>, vectors: &mut Buffer<f32>) {
        let dim = self.kv.shape.head_dim;
        vectors.resize(item.queries(cut) * dim);
        let mut to = vectors.chunks_exact_mut(dim);
        for kv_head in item.kv_heads.clone() {
            for row in item.rows.clone() {
                let heads = &self.qkv.read_row(worker, row)[kv_head * cut.group * dim..][..cut.group * dim];
                for (head, to) in heads.chunks_exact(dim).zip(&mut to) {
                    to.copy_from_slice(head);
                    self.rope.rotate(to, item.sequence.position(row));
                    self.kv.rotation.apply(to, dim);
                    to.iter_mut().for_each(|v| *v *= self.shape.scale);
                }
            }
        }
    }

    /// Where the memory of pages begins, for reading.
    fn start(&self, worker: &Worker<'_>, appended: bool) -> *const u8 {
        if appended { self.kv.data.read(worker).as_ptr() } else { self.kv.data.write(worker, Access::WriteHeads) }
    }

    fn attend_chunk(
        &self,
        worker: &Worker<'_>,
        cut: &Cut,
        window: &Window<'_>,
        vectors: &[f32],
        rounded: &Rounded,
        partial: &mut [f32],
    ) {
        let (item, dim) = (window.item, self.kv.shape.head_dim);
        let rounded = RoundedQueries {
            codes: rounded.codes.as_ptr(),
            scales: rounded.scales.as_ptr(),
            sums: rounded.sums.as_ptr(),
        };
        let per_head = item.rows.len() * cut.group;
        let partials = Partial::of(partial, item.queries(cut));
        let mut visible = [0; QUERIES_MAX];
        for i in 0..item.kv_heads.len() {
            for first in (0..per_head).step_by(QUERIES_MAX) {
                let count = QUERIES_MAX.min(per_head - first);
                for (q, visible) in visible[..count].iter_mut().enumerate() {
                    let row = item.rows.start + (first + q) / cut.group;
                    let seen = item.sequence.position(row) + 1;
                    *visible = seen.saturating_sub(window.chunk * CHUNK_TOKENS).min(CHUNK_TOKENS);
                }
                let at = i * per_head + first;
                let vectors = &vectors[at * dim..][..count * dim];
                let rounded = rounded.from(at, dim);
                let queries = Queries { vectors, rounded, visible: &visible[..count], head_dim: dim };
                // SAFETY: `Batch` checked that there are pages for all tokens, and `cell` that they exist; queries were
                // rounded if any key is. In this phase nobody writes what is visible here, but for this worker before
                // (`append_item`).
                unsafe {
                    let out = Partial {
                        largest: &mut partials.largest[at..at + count],
                        total: &mut partials.total[at..at + count],
                        sums: &mut partials.sums[at * dim..(at + count) * dim],
                    };
                    (worker.kernels().attend_chunk)(queries, window.chunk_of(i), out);
                }
            }
        }
    }

    /// Divides an item's sums by their totals and puts them into the output. `space` is for the heads of a row.
    fn put_result(
        &self,
        worker: &Worker<'_>,
        cut: &Cut,
        item: &Item<'_>,
        result: &mut Buffer<f32>,
        space: &mut Buffer<f32>,
    ) {
        let dim = self.kv.shape.head_dim;
        let Partial { total, sums, .. } = Partial::of(result, item.queries(cut));
        for (sums, total) in sums.chunks_exact_mut(dim).zip(total) {
            sums.iter_mut().for_each(|v| *v /= *total);
            self.kv.rotation.apply(sums, dim);
        }
        let group_len = cut.group * dim;
        space.resize(item.kv_heads.len() * group_len);
        for (i, row) in item.rows.clone().enumerate() {
            for (h, to) in space.chunks_exact_mut(group_len).enumerate() {
                to.copy_from_slice(&sums[(h * item.rows.len() + i) * group_len..][..group_len]);
            }
            let cols = item.kv_heads.start * group_len..item.kv_heads.end * group_len;
            let part = Part { access: Access::WriteHeads, row, cols };
            // SAFETY: each row and head is in one item, whose result one worker puts; `Cut` made these whole groups.
            unsafe { self.out.put(worker, &part, space) };
        }
    }

    /// Merges the chunks of the item that begins with this worker and is shared with others, if there is one.
    fn put_together(&self, worker: &Worker<'_>, cut: &Cut) {
        let deal = Deal::new(self.batch, cut, worker.count());
        let dim = self.kv.shape.head_dim;
        let mut before = 0;
        for item in items(self.batch, cut) {
            let cost = item.cost(cut);
            let (first, last) = (deal.owner(before), deal.owner(before + (item.chunks() - 1) * cost));
            if first == worker.index() && last != first {
                let mut scratch = worker.scratch();
                let Scratch { queries: space, partial, result, .. } = &mut *scratch;
                let (queries, partials) = (item.queries(cut), self.shared.partials.read(worker));
                result.resize(queries * (dim + 2));
                partial.resize(queries * (dim + 2));
                Partial::of(result, queries).clear();
                for chunk in 0..item.chunks() {
                    let at = (first * self.shared.chunks_max + chunk) * self.shared.partial_len;
                    partial.copy_from_slice(&partials[at..][..queries * (dim + 2)]);
                    // SAFETY: both hold as many queries of `dim`.
                    unsafe {
                        (worker.kernels().merge)(Partial::of(result, queries), Partial::of(partial, queries), dim)
                    };
                }
                self.put_result(worker, cut, &item, result, space);
            }
            before += item.chunks() * cost;
        }
    }
}

/// Rounds each vector of `dim` to bytes, padded with zeros to whole groups.
fn round_queries(worker: &Worker<'_>, vectors: &[f32], dim: usize, to: &mut Rounded) {
    let (count, groups) = (vectors.len() / dim, dim.div_ceil(GROUP));
    to.codes.resize(count * groups * GROUP);
    to.scales.resize(count * groups);
    to.sums.resize(count * groups * 2);
    to.scaled_sums.resize(count * groups);
    let mut padded = [0f32; HEAD_DIM_MAX];
    for (i, vector) in vectors.chunks_exact(dim).enumerate() {
        padded[..dim].copy_from_slice(vector);
        let out = Quantized {
            codes: &mut to.codes[i * groups * GROUP..][..groups * GROUP],
            scales: &mut to.scales[i * groups..][..groups],
            sums: &mut to.sums[i * groups * 2..][..groups * 2],
            scaled_sums: &mut to.scaled_sums[i * groups..][..groups],
        };
        // SAFETY: whole groups, and lengths that go with them.
        unsafe { (worker.kernels().quantize)(&padded[..groups * GROUP], out) };
    }
}

impl std::fmt::Debug for Attention<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attention(layer {}, {} rows)", self.layer, self.batch.rows())
    }
}

/// KV heads of an item at most.
const SPAN_MAX: usize = 2;

/// How a model's heads are cut into items.
struct Cut {
    /// Query heads for each KV head.
    group: usize,
    /// KV heads of an item: one, or two where the results of one are not whole groups of the next matmul's input.
    span: usize,
    kv_heads: usize,
    /// Rows of an item at most.
    block_rows: usize,
}

impl Cut {
    fn new(kv: &KvMemory, shape: AttentionShape) -> Self {
        let kv_heads = kv.shape.kv_heads;
        let group = shape.heads / kv_heads;
        assert_eq!(shape.heads, group * kv_heads);
        let span = if (group * kv.shape.head_dim).is_multiple_of(GROUP) { 1 } else { SPAN_MAX };
        Self { group, span, kv_heads, block_rows: (QUERIES_MAX / group).max(1) }
    }

    /// Queries of a row in an item at most.
    fn row_queries(&self) -> usize {
        self.group * self.span
    }
}

/// Some rows of a sequence and the queries of one KV head (or two).
struct Item<'a> {
    sequence: &'a SequenceRows<'a>,
    rows: Range<usize>,
    kv_heads: Range<usize>,
}

impl Item<'_> {
    fn queries(&self, cut: &Cut) -> usize {
        self.rows.len() * self.kv_heads.len() * cut.group
    }

    /// Tokens that its last row sees.
    fn tokens(&self) -> usize {
        self.sequence.position(self.rows.end - 1) + 1
    }

    fn chunks(&self) -> usize {
        self.tokens().div_ceil(CHUNK_TOKENS)
    }

    /// The work of a chunk.
    fn cost(&self, cut: &Cut) -> usize {
        self.queries(cut)
    }
}

/// The cells of a chunk of an item, and of the chunk after it.
struct Window<'a> {
    item: &'a Item<'a>,
    chunk: usize,
    /// Pages from the chunk's first on whose cells are known.
    pages: usize,
    /// For each KV head of the item.
    cells: [[Cell; 2 * CHUNK_PAGES]; SPAN_MAX],
}

impl<'a> Window<'a> {
    fn new(item: &'a Item<'a>) -> Self {
        Self { item, chunk: 0, pages: 0, cells: [[Cell::NONE; 2 * CHUNK_PAGES]; SPAN_MAX] }
    }

    /// Goes to a chunk. `cells` finds those of a head that are not known from the chunk before.
    fn move_to<'k>(&mut self, chunk: usize, cells: impl Fn(usize) -> Cells<'k>) {
        let known = if chunk == self.chunk + 1 { self.pages.saturating_sub(CHUNK_PAGES) } else { 0 };
        let pages = &self.item.sequence.pages[chunk * CHUNK_PAGES..self.item.tokens().div_ceil(PAGE_TOKENS)];
        let pages = &pages[..pages.len().min(2 * CHUNK_PAGES)];
        for (to, head) in self.cells.iter_mut().zip(self.item.kv_heads.clone()) {
            to.copy_within(CHUNK_PAGES.., 0);
            let mut cells = cells(head);
            for (to, page) in to[known..].iter_mut().zip(&pages[known..]) {
                *to = cells.of(*page);
            }
        }
        (self.chunk, self.pages) = (chunk, pages.len());
    }

    /// The chunk for one of the item's KV heads.
    fn chunk_of(&self, head: usize) -> Chunk<'_> {
        let (cells, next) = self.cells[head][..self.pages].split_at(self.pages.min(CHUNK_PAGES));
        Chunk { cells, next }
    }
}

/// All items; those of one KV head follow each other, so that its keys and values stay in a worker's cache.
fn items<'a>(batch: &'a Batch<'a>, cut: &Cut) -> impl Iterator<Item = Item<'a>> {
    let (span, kv_heads, block_rows) = (cut.span, cut.kv_heads, cut.block_rows);
    batch.sequences().iter().flat_map(move |sequence| {
        (0..kv_heads).step_by(span).flat_map(move |head| {
            sequence.rows.clone().step_by(block_rows).map(move |row| Item {
                sequence,
                rows: row..sequence.rows.end.min(row + block_rows),
                kv_heads: head..kv_heads.min(head + span),
            })
        })
    })
}

/// Who takes which chunk: the work laid out in a row and cut into equal parts.
struct Deal {
    total: usize,
    workers: usize,
}

impl Deal {
    fn new(batch: &Batch<'_>, cut: &Cut, workers: usize) -> Self {
        Self { total: items(batch, cut).map(|item| item.chunks() * item.cost(cut)).sum(), workers }
    }

    /// Where the part of a worker begins.
    fn bound(&self, worker: usize) -> usize {
        (self.total * worker).div_ceil(self.workers)
    }

    /// The worker of a chunk that begins at `at`.
    fn owner(&self, at: usize) -> usize {
        at * self.workers / self.total
    }

    /// The chunks of a worker of an item that begins at `before` and has `chunks` chunks of `cost`.
    fn own_chunks(&self, before: usize, cost: usize, chunks: usize, worker: usize) -> Range<usize> {
        let first = |worker: usize| self.bound(worker).saturating_sub(before).div_ceil(cost).min(chunks);
        first(worker)..first(worker + 1)
    }
}
