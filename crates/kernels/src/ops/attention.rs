//! Attention of a batch over the pages of its sequences.
//!
//! Work is divided into items (some rows of a sequence, one KV head) and these into chunks of tokens. Workers take equal runs
//! of chunks, so that one long sequence keeps all of them busy as well as many short ones do. The few items that fall to
//! more than one worker are put together after a barrier.

mod fast;

use std::ops::Range;

use ruvllm_runner::{Batch, CheckedBatch, KvHeads, PAGE_TOKENS, PageLocation, SequenceRows};

use super::append::append;
use super::host_pages::Cells;
use super::matrix::Span;
use super::rotation::apply_rotation;
use super::{Activations, BatchRows, HEAD_DIM_MAX, HeadTransform, HostPages, Matrix, own_rows};
use crate::kernels::attention::{
    CHUNK_PAGES, CHUNK_TOKENS, Cell, Chunk, Partial, QUERIES_MAX, QuantizedQueries, Queries, Visible,
};
use crate::kernels::rows::Quantized;
use crate::threads::{Access, Buffer, Part, Pool, QuantizedBuffers, Scratch, Shared, Worker};
use crate::weights::GROUP;

/// What attention needs to know of a layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    /// What scores are multiplied by, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Maximum number of tokens that a row attends to, itself included; `None` is all before it.
    pub window: Option<usize>,
    /// Scores `s` become `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
}

impl AttentionShape {
    /// Returns the positions that a token attends to.
    fn visible(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        end.saturating_sub(self.window.unwrap_or(end))..end
    }
}

/// Room for the results of items that several workers share.
#[derive(Debug)]
pub struct SplitResults {
    /// `[workers, chunks, partial]`: an item's place is that of the worker with its first chunk.
    partials: Shared<f32>,
    chunks_max: usize,
    partial_len: usize,
}

impl SplitResults {
    /// For sequences of up to `context` tokens in layers of these kinds.
    pub fn new(pool: &Pool, layers: impl IntoIterator<Item = (KvHeads, AttentionShape)>, context: usize) -> Self {
        let partial_len = |(kv, shape): (KvHeads, AttentionShape)| {
            let partition = HeadPartition::new(kv, shape);
            partition.block_rows * partition.row_queries() * (kv.dim + 2)
        };
        let partial_len = layers.into_iter().map(partial_len).max().unwrap_or(0);
        let chunks_max = context.div_ceil(CHUNK_TOKENS);
        Self { partials: Shared::zeroed(pool, pool.threads() * chunks_max * partial_len), chunks_max, partial_len }
    }
}

/// Everything that the workers of a region know of one layer's attention.
pub struct Attention<'a> {
    pub qkv: &'a Matrix,
    pub batch: CheckedBatch<'a>,
    pub pages: &'a HostPages,
    /// Its number in the pages.
    pub layer: usize,
    pub shape: AttentionShape,
    /// What is done to queries and keys before they meet.
    pub transform: HeadTransform<'a>,
    /// Whether keys and values are in the pages already, where another layer has put them.
    pub is_reader: bool,
    /// For each head, a score that takes part in the softmax without a value.
    pub sinks: Option<&'a [f32]>,
    /// Whether a row of `qkv` has gates of the results behind its queries.
    pub is_gated: bool,
    pub shared: &'a SplitResults,
    pub out: &'a Activations,
}

impl Attention<'_> {
    /// Appends the keys and values of every row (the last parts of a row of `qkv`) to the pages, and lets its queries
    /// (the first part) attend to all tokens up to its own.
    pub fn run(&self, worker: &mut Worker<'_>) {
        worker.begin(Part::Attention);
        let kv = self.kv_heads();
        let partition = HeadPartition::new(kv, self.shape);
        let queries = if self.is_gated { 2 * self.shape.heads } else { self.shape.heads };
        let keys_and_values = if self.is_reader { 0 } else { 2 * kv.count };
        assert_eq!(self.qkv.cols, (queries + keys_and_values) * kv.dim);
        assert_eq!(self.out.cols(), self.shape.heads * kv.dim);
        assert_eq!(self.batch.memory(), (self.pages.shape, self.pages.bytes()));
        assert!(self.sinks.is_none_or(|sinks| sinks.len() == self.shape.heads));
        self.transform.check(kv.dim);
        // A single new token is seen by its own row only, so the worker that attends to it can append it as well.
        let at_once = self.batch.sequences().iter().any(|sequence| sequence.rows.len() > 1 || sequence.is_fast);
        if at_once && !self.is_reader {
            self.append_rows(worker);
            worker.barrier();
            worker.begin(Part::Attention);
        }
        let appended = at_once || self.is_reader;
        self.attend_fast(worker, &partition);
        let split = self.attend_own(worker, &partition, appended);
        if split {
            worker.barrier();
            worker.begin(Part::Attention);
            self.put_together(worker, &partition);
        }
    }

    /// The KV heads of this layer.
    pub(super) fn kv_heads(&self) -> KvHeads {
        self.pages.shape.heads_of(self.layer)
    }

    fn append_rows(&self, worker: &Worker<'_>) {
        for sequence in self.batch.sequences() {
            for row in own_rows(worker, sequence.rows.end).filter(|row| sequence.rows.contains(row)) {
                // SAFETY: the batch was checked: no two sequences write one page, and rows have cells of their own.
                unsafe { append(self, worker, Access::WriteRows, sequence, row, 0..self.kv_heads().count) };
            }
        }
    }

    /// Attends to this worker's chunks. Returns whether any item is shared between workers.
    fn attend_own(&self, worker: &Worker<'_>, partition: &HeadPartition, appended: bool) -> bool {
        let work = WorkSplit::new(self, partition, worker.count());
        let mut scratch = worker.scratch();
        let mut any_split = false;
        let mut before = 0;
        for item in self.items(partition, false, partition.block_rows) {
            let (cost, chunks) = (item.cost(partition), item.chunks.len());
            let owners = work.owner(before)..=work.owner(before + (chunks - 1) * cost);
            any_split |= owners.start() != owners.end();
            if owners.contains(&worker.index()) {
                let own = work.own_chunks(before, cost, chunks, worker.index());
                if !own.is_empty() {
                    if !appended && own.end == chunks {
                        self.append_item(worker, &item);
                    }
                    let whole = owners.start() == owners.end();
                    let place = (!whole).then_some(*owners.start());
                    self.attend_item(worker, partition, &item, own, place, appended, &mut scratch);
                }
            }
            before += chunks * cost;
        }
        any_split
    }

    fn append_item(&self, worker: &Worker<'_>, item: &Item<'_>) {
        // SAFETY: only the worker with an item's last chunk comes here, and each row and head is in one item.
        unsafe {
            append(self, worker, Access::WriteHeads, item.sequence, item.rows.start, item.kv_heads.clone());
        }
    }

    /// Attends to some of an item's chunks: to a result if these are all, else to the item's place among the shared.
    #[allow(clippy::too_many_arguments)]
    fn attend_item(
        &self,
        worker: &Worker<'_>,
        partition: &HeadPartition,
        item: &Item<'_>,
        chunks: Range<usize>,
        place: Option<usize>,
        appended: bool,
        scratch: &mut Scratch,
    ) {
        let dim = self.kv_heads().dim;
        let queries = item.queries(partition);
        let len = queries * (dim + 2);
        let Scratch { queries: vectors, rounded, partial, result, .. } = scratch;
        self.take_queries(worker, partition, item, vectors);
        if self.batch.has_integer_keys() {
            round_queries(worker, vectors, dim, rounded);
        }
        result.resize(len);
        Partial::of(result, queries).clear();
        let mut cursor = ChunkCursor::new(item, self.batch.pages(item.sequence));
        let start = self.start(worker, appended);
        for chunk in chunks {
            partial.resize(len);
            cursor.move_to(item.chunks.start + chunk, |head| self.pages.cells(start, self.layer, head));
            self.attend_chunk(worker, partition, &cursor, vectors, rounded, partial);
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
            self.put_result(worker, partition, item, result, vectors);
        }
    }

    /// The item's queries, rotated and scaled: `[KV heads, rows, heads of the group, head_dim]`.
    fn take_queries(&self, worker: &Worker<'_>, partition: &HeadPartition, item: &Item<'_>, vectors: &mut Buffer<f32>) {
        let dim = self.kv_heads().dim;
        vectors.resize(item.queries(partition) * dim);
        let mut to = vectors.chunks_exact_mut(dim);
        for kv_head in item.kv_heads.clone() {
            for row in item.rows.clone() {
                let heads = &self.qkv.read_row(worker, row)[kv_head * partition.group * dim..][..partition.group * dim];
                for (head, to) in heads.chunks_exact(dim).zip(&mut to) {
                    to.copy_from_slice(head);
                    self.transform.query(worker, to, item.sequence.position(row));
                    apply_rotation(self.pages.rotation, to, dim);
                    to.iter_mut().for_each(|v| *v *= self.shape.scale);
                }
            }
        }
    }

    /// Where the memory of pages begins, for reading.
    fn start(&self, worker: &Worker<'_>, appended: bool) -> *const u8 {
        if appended { self.pages.data.read(worker).as_ptr() } else { self.pages.data.write(worker, Access::WriteHeads) }
    }

    fn attend_chunk(
        &self,
        worker: &Worker<'_>,
        partition: &HeadPartition,
        cursor: &ChunkCursor<'_>,
        vectors: &[f32],
        rounded: &QuantizedBuffers,
        partial: &mut [f32],
    ) {
        let (item, dim) = (cursor.item, self.kv_heads().dim);
        let rounded = QuantizedQueries {
            codes: rounded.codes.as_ptr(),
            scales: rounded.scales.as_ptr(),
            sums: rounded.sums.as_ptr(),
        };
        let per_head = item.rows.len() * partition.group;
        let partials = Partial::of(partial, item.queries(partition));
        let mut visible = [Visible::default(); QUERIES_MAX];
        for i in 0..item.kv_heads.len() {
            for first in (0..per_head).step_by(QUERIES_MAX) {
                let count = QUERIES_MAX.min(per_head - first);
                for (q, visible) in visible[..count].iter_mut().enumerate() {
                    *visible = self.visible_in(partition, item, cursor.chunk, first + q);
                }
                let at = i * per_head + first;
                let vectors = &vectors[at * dim..][..count * dim];
                let rounded = rounded.from(at, dim);
                let queries = Queries {
                    vectors,
                    rounded,
                    visible: &visible[..count],
                    head_dim: dim,
                    softcap: self.shape.softcap,
                };
                // SAFETY: the batch was checked: there are pages for all tokens, within the memory; queries were
                // rounded if any key is. In this phase nobody writes what is visible here, but for this worker before
                // (`append_item`).
                unsafe {
                    let out = Partial {
                        largest: &mut partials.largest[at..at + count],
                        total: &mut partials.total[at..at + count],
                        sums: &mut partials.sums[at * dim..(at + count) * dim],
                    };
                    (worker.kernels().attend_chunk)(queries, cursor.chunk_of(i), out);
                }
            }
        }
    }

    /// Divides an item's sums by their totals and puts them into the output. `space` is for the heads of a row.
    fn put_result(
        &self,
        worker: &Worker<'_>,
        partition: &HeadPartition,
        item: &Item<'_>,
        result: &mut Buffer<f32>,
        space: &mut Buffer<f32>,
    ) {
        let dim = self.kv_heads().dim;
        let Partial { total, sums, largest } = Partial::of(result, item.queries(partition));
        if let Some(sinks) = self.sinks {
            let of_head = |i: usize| {
                let kv_head = item.kv_heads.start + i / (item.rows.len() * partition.group);
                sinks[kv_head * partition.group + i % partition.group]
            };
            for (i, (total, largest)) in total.iter_mut().zip(largest).enumerate() {
                *total += (of_head(i) - *largest).exp();
            }
        }
        for (sums, total) in sums.chunks_exact_mut(dim).zip(total) {
            sums.iter_mut().for_each(|v| *v /= *total);
            apply_rotation(self.pages.rotation, sums, dim);
        }
        let group_len = partition.group * dim;
        space.resize(item.kv_heads.len() * group_len);
        for (i, row) in item.rows.clone().enumerate() {
            for (h, to) in space.chunks_exact_mut(group_len).enumerate() {
                to.copy_from_slice(&sums[(h * item.rows.len() + i) * group_len..][..group_len]);
            }
            let cols = item.kv_heads.start * group_len..item.kv_heads.end * group_len;
            if self.is_gated {
                let gates = &self.qkv.read_row(worker, row)[self.shape.heads * dim..];
                // SAFETY: both are as long as these heads, whose dimension is a multiple of 16.
                unsafe { (worker.kernels().sigmoid_gate)(&gates[cols.clone()], space) };
            }
            let part = Span { access: Access::WriteHeads, row, cols };
            // SAFETY: each row and head is in one item, whose result one worker puts; `HeadPartition` made these whole groups.
            unsafe { self.out.put(worker, BatchRows::of(&self.batch), &part, space) };
        }
    }

    /// Merges the chunks of the item that begins with this worker and is shared with others, if there is one.
    fn put_together(&self, worker: &Worker<'_>, partition: &HeadPartition) {
        let work = WorkSplit::new(self, partition, worker.count());
        let dim = self.kv_heads().dim;
        let mut before = 0;
        for item in self.items(partition, false, partition.block_rows) {
            let (cost, chunks) = (item.cost(partition), item.chunks.len());
            let (first, last) = (work.owner(before), work.owner(before + (chunks - 1) * cost));
            if first == worker.index() && last != first {
                let mut scratch = worker.scratch();
                let Scratch { queries: space, partial, result, .. } = &mut *scratch;
                let (queries, partials) = (item.queries(partition), self.shared.partials.read(worker));
                result.resize(queries * (dim + 2));
                partial.resize(queries * (dim + 2));
                Partial::of(result, queries).clear();
                for chunk in 0..chunks {
                    let at = (first * self.shared.chunks_max + chunk) * self.shared.partial_len;
                    partial.copy_from_slice(&partials[at..][..queries * (dim + 2)]);
                    // SAFETY: both hold as many queries of `dim`.
                    unsafe {
                        (worker.kernels().merge)(Partial::of(result, queries), Partial::of(partial, queries), dim)
                    };
                }
                self.put_result(worker, partition, &item, result, space);
            }
            before += chunks * cost;
        }
    }

    /// All items of exact rows or of fast ones; those of one KV head follow each other, so that its keys and values stay in a
    /// worker's cache.
    fn items(&self, partition: &HeadPartition, fast: bool, block_rows: usize) -> impl Iterator<Item = Item<'_>> {
        let (span, kv_heads, shape) = (partition.span, partition.kv_heads, self.shape);
        let batch: &Batch = &self.batch;
        let sequences = batch.sequences().iter().filter(move |sequence| sequence.is_fast == fast);
        sequences.flat_map(move |sequence| {
            (0..kv_heads).step_by(span).flat_map(move |head| {
                sequence.rows.clone().step_by(block_rows).map(move |row| {
                    let rows = row..sequence.rows.end.min(row + block_rows);
                    Item::new(sequence, rows, head..kv_heads.min(head + span), shape)
                })
            })
        })
    }
}

/// Rounds each vector of `dim` to bytes, padded with zeros to whole groups.
fn round_queries(worker: &Worker<'_>, vectors: &[f32], dim: usize, to: &mut QuantizedBuffers) {
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

/// Maximum number of KV heads of an item.
const SPAN_MAX: usize = 2;

/// How the heads of a model are divided into items.
struct HeadPartition {
    /// Query heads for each KV head.
    group: usize,
    /// KV heads of an item: one, or two where the results of one are not whole groups of the next matmul's input.
    span: usize,
    kv_heads: usize,
    /// Maximum number of rows of an item.
    block_rows: usize,
}

impl HeadPartition {
    fn new(kv: KvHeads, shape: AttentionShape) -> Self {
        let kv_heads = kv.count;
        let group = shape.heads / kv_heads;
        assert_eq!(shape.heads, group * kv_heads);
        let span = if (group * kv.dim).is_multiple_of(GROUP) { 1 } else { SPAN_MAX };
        Self { group, span, kv_heads, block_rows: (QUERIES_MAX / group).max(1) }
    }

    /// Returns the maximum number of queries of a row in an item.
    fn row_queries(&self) -> usize {
        self.group * self.span
    }
}

/// Some rows of a sequence and the queries of one KV head (or two).
struct Item<'a> {
    sequence: &'a SequenceRows,
    rows: Range<usize>,
    kv_heads: Range<usize>,
    /// Chunks of the sequence in which any row sees a token.
    chunks: Range<usize>,
}

impl<'a> Item<'a> {
    fn new(sequence: &'a SequenceRows, rows: Range<usize>, kv_heads: Range<usize>, shape: AttentionShape) -> Self {
        let first = shape.visible(sequence.position(rows.start)).start;
        let last = shape.visible(sequence.position(rows.end - 1)).end;
        Self { sequence, rows, kv_heads, chunks: first / CHUNK_TOKENS..last.div_ceil(CHUNK_TOKENS) }
    }

    fn queries(&self, partition: &HeadPartition) -> usize {
        self.rows.len() * self.kv_heads.len() * partition.group
    }

    /// Tokens that its last row sees.
    fn tokens(&self) -> usize {
        self.sequence.position(self.rows.end - 1) + 1
    }

    /// The work of a chunk.
    fn cost(&self, partition: &HeadPartition) -> usize {
        self.queries(partition)
    }
}

/// The cells of a chunk of an item, and of the chunk after it.
struct ChunkCursor<'a> {
    item: &'a Item<'a>,
    /// All pages of its sequence.
    table: &'a [PageLocation],
    chunk: usize,
    /// Pages from the chunk's first on whose cells are known.
    pages: usize,
    /// For each KV head of the item.
    cells: [[Cell; 2 * CHUNK_PAGES]; SPAN_MAX],
}

impl<'a> ChunkCursor<'a> {
    fn new(item: &'a Item<'a>, table: &'a [PageLocation]) -> Self {
        Self { item, table, chunk: 0, pages: 0, cells: [[Cell::NONE; 2 * CHUNK_PAGES]; SPAN_MAX] }
    }

    /// Goes to a chunk. `cells` finds those of a head that are not known from the chunk before.
    fn move_to<'k>(&mut self, chunk: usize, cells: impl Fn(usize) -> Cells<'k>) {
        let known = if chunk == self.chunk + 1 { self.pages.saturating_sub(CHUNK_PAGES) } else { 0 };
        let pages = &self.table[chunk * CHUNK_PAGES..self.item.tokens().div_ceil(PAGE_TOKENS)];
        let pages = &pages[..pages.len().min(2 * CHUNK_PAGES)];
        for (to, head) in self.cells.iter_mut().zip(self.item.kv_heads.clone()) {
            to.copy_within(CHUNK_PAGES.., 0);
            let mut cells = cells(head);
            for (to, page) in to[known..].iter_mut().zip(&pages[known..]) {
                *to = cells.at(*page);
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

/// Which worker takes which chunk: the work laid out in a row and divided into equal parts.
struct WorkSplit {
    total: usize,
    workers: usize,
}

impl WorkSplit {
    fn new(attention: &Attention<'_>, partition: &HeadPartition, workers: usize) -> Self {
        let total = attention
            .items(partition, false, partition.block_rows)
            .map(|item| item.chunks.len() * item.cost(partition))
            .sum();
        Self { total, workers }
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
