//! Attention of fast rows: scores and values as products in bf16, the softmax between them in floats.
//!
//! Chunks begin at multiples of their length, as for other rows, and what a row does not see changes nothing of its sums: its
//! result does not depend on the rows beside it.

use super::{Attention, ChunkCursor, HeadPartition, Item};
use crate::kernels::attention::{CHUNK_TOKENS, Partial, Visible};
use crate::kernels::bf16::{Bf16, RowBlocks, SoftmaxBlock, Sums, UnpackedTiles};
use crate::kernels::matmul::TileSums;
use crate::threads::{AttentionOperands, Scratch, Worker};
use crate::weights::{GROUP, TILE_ROWS};
use ruvllm_runner::PAGE_TOKENS;

/// Queries of an item of one KV head: so many that unpacking keys and values costs little beside.
const FAST_QUERIES: usize = 192;
/// Scores of tokens a power of two apart would fall into few sets of the first-level cache.
const SCORES_STRIDE: usize = CHUNK_TOKENS + TILE_ROWS;
/// Maximum number of queries of a product.
const BLOCK_QUERIES: usize = 64;

impl Attention<'_> {
    /// Attends with all fast rows, item by item as workers come free, the last rows of a sequence first: they see most.
    pub(super) fn attend_fast(&self, worker: &Worker<'_>, partition: &HeadPartition) {
        if self.batch.exact_rows() == self.batch.rows() {
            return;
        }
        let bf16 = worker.kernels().bf16.expect("asked before there were such rows");
        let block_rows = (FAST_QUERIES / partition.group).max(1);
        let items: Vec<Item<'_>> = self.items(partition, true, block_rows).collect();
        let mut scratch = worker.scratch();
        for unit in worker.units().take_while(|unit| *unit < items.len()) {
            self.attend_fast_item(worker, partition, bf16, &items[items.len() - 1 - unit], &mut scratch);
        }
    }

    fn attend_fast_item(
        &self,
        worker: &Worker<'_>,
        partition: &HeadPartition,
        bf16: Bf16,
        item: &Item<'_>,
        scratch: &mut Scratch,
    ) {
        let dim = self.kv_heads().dim;
        let queries = item.queries(partition);
        let Scratch { queries: vectors, bf16: operands, partial: scores, result, .. } = scratch;
        self.take_queries(worker, partition, item, vectors);
        let per_head = item.rows.len() * partition.group;
        operands.put_queries(bf16, vectors, per_head, dim);
        // Blocks of rows are whole in memory, also where their queries are not.
        result.resize(queries * 2 + queries.next_multiple_of(bf16.product.rows) * dim + bf16.product.rows * dim);
        Partial::of(result, queries).clear();
        scores.resize(bf16.product.rows * SCORES_STRIDE);
        let mut cursor = ChunkCursor::new(item, self.batch.pages(item.sequence));
        let start = self.start(worker, true);
        for chunk in item.chunks.clone() {
            cursor.move_to(chunk, |head| self.pages.cells(start, self.layer, head));
            for head in 0..item.kv_heads.len() {
                let tokens = (item.tokens() - chunk * CHUNK_TOKENS).min(CHUNK_TOKENS);
                operands.put_keys_and_values(bf16, &cursor, head, tokens, dim);
                let partials = Partial::of(result, queries);
                for first in (0..per_head).step_by(bf16.product.rows) {
                    let at = head * per_head + first;
                    let count = bf16.product.rows.min(per_head - first);
                    let mut visible = [Visible::default(); BLOCK_QUERIES];
                    for (q, visible) in visible[..count].iter_mut().enumerate() {
                        *visible = self.visible_in(partition, item, chunk, first + q);
                    }
                    if visible[..count].iter().all(|visible| visible.is_empty()) {
                        continue;
                    }
                    let block = QueryBlock {
                        head,
                        first,
                        visible: &visible[..count],
                        tokens: tokens.next_multiple_of(GROUP),
                        dim,
                        softcap: self.shape.softcap,
                    };
                    let out = Partial {
                        largest: &mut partials.largest[at..at + count],
                        total: &mut partials.total[at..at + count],
                        sums: &mut partials.sums[at * dim..],
                    };
                    operands.attend(bf16, per_head, &block, scores, out);
                }
            }
        }
        self.put_result(worker, partition, item, result, vectors);
    }

    /// Returns which tokens of a chunk a query of an item sees.
    pub(super) fn visible_in(&self, partition: &HeadPartition, item: &Item<'_>, chunk: usize, query: usize) -> Visible {
        let in_chunk = |position: usize| position.saturating_sub(chunk * CHUNK_TOKENS).min(CHUNK_TOKENS);
        let row = item.rows.start + query / partition.group;
        let seen = self.shape.visible(item.sequence.position(row));
        Visible { start: in_chunk(seen.start), end: in_chunk(seen.end) }
    }
}

/// Some queries of an item, and what they are multiplied with.
struct QueryBlock<'a> {
    /// The KV head's number in the item.
    head: usize,
    /// The first query, among those of the head.
    first: usize,
    visible: &'a [Visible],
    /// Tokens of the chunk, a multiple of 32.
    tokens: usize,
    dim: usize,
    softcap: Option<f32>,
}

impl AttentionOperands {
    /// Rounds the queries of each KV head, `per_head` vectors of `dim`.
    fn put_queries(&mut self, bf16: Bf16, vectors: &[f32], per_head: usize, dim: usize) {
        let (padded, rows) = (dim.next_multiple_of(GROUP), per_head.next_multiple_of(bf16.product.rows));
        let mut vector = [0f32; super::HEAD_DIM_MAX];
        self.queries.resize(vectors.len() / dim / per_head * rows * padded);
        for (i, from) in vectors.chunks_exact(dim).enumerate() {
            let (head, row) = (i / per_head, i % per_head);
            let at = head * rows * padded + row / TILE_ROWS * padded * TILE_ROWS + row % TILE_ROWS * GROUP;
            vector[..dim].copy_from_slice(from);
            let to = &mut self.queries[at..];
            assert!(to.len() >= (padded / GROUP - 1) * GROUP * TILE_ROWS + GROUP);
            // SAFETY: a line for each group of the vector, a block's lines apart, as asserted.
            unsafe { (bf16.round)(&vector[..padded], to.as_mut_ptr()) };
        }
    }

    /// Unpacks the keys and values of one head in a chunk, of which the first `tokens` count.
    fn put_keys_and_values(&mut self, bf16: Bf16, cursor: &ChunkCursor<'_>, head: usize, tokens: usize, dim: usize) {
        let (padded, padded_tokens) = (dim.next_multiple_of(GROUP), tokens.next_multiple_of(GROUP));
        self.keys.resize(padded_tokens * padded);
        self.values.resize(padded_tokens * dim);
        let cells = cursor.chunk_of(head).cells;
        for page in 0..padded_tokens / PAGE_TOKENS {
            let keys = &mut self.keys[page * PAGE_TOKENS * padded..][..PAGE_TOKENS * padded];
            let left = tokens.saturating_sub(page * PAGE_TOKENS).min(PAGE_TOKENS);
            let values = &mut self.values[page * PAGE_TOKENS * TILE_ROWS..];
            let stride = padded_tokens * TILE_ROWS;
            assert!(values.len() >= (dim / TILE_ROWS - 1) * stride + PAGE_TOKENS * TILE_ROWS);
            let Some(cell) = cells.get(page).filter(|_| left > 0) else {
                keys.fill(0);
                values.chunks_mut(stride).for_each(|part| part[..PAGE_TOKENS * TILE_ROWS].fill(0));
                continue;
            };
            // SAFETY: the batch was checked: the page holds these tokens; the operands have room, as asserted.
            unsafe {
                (bf16.unpack_keys)(*cell, dim, keys.as_mut_ptr());
                (bf16.unpack_values)(*cell, dim, left, values.as_mut_ptr(), stride);
            }
        }
    }

    /// Lets some queries attend to the chunk that was unpacked.
    fn attend(&mut self, bf16: Bf16, per_head: usize, block: &QueryBlock<'_>, scores: &mut [f32], out: Partial<'_>) {
        let QueryBlock { head, first, visible, tokens, dim, softcap } = *block;
        let (padded, rows) = (dim.next_multiple_of(GROUP), per_head.next_multiple_of(bf16.product.rows));
        let queries = &self.queries[(head * rows + first) * padded..][..bf16.product.rows * padded];
        self.weights.resize(bf16.product.rows * tokens);
        if visible.len() < bf16.product.rows {
            // Whoever comes behind these queries has sums in the same block, which must stay what they are.
            self.weights.fill(0);
        }
        assert!(self.keys.len() >= tokens * padded && self.values.len() >= tokens * dim && tokens <= CHUNK_TOKENS);
        assert!(scores.len() >= bf16.product.rows * SCORES_STRIDE && out.sums.len() >= bf16.product.rows * dim);
        let scores = TileSums { start: scores.as_mut_ptr(), stride: SCORES_STRIDE };
        let keys = UnpackedTiles { values: self.keys.as_ptr(), count: tokens / TILE_ROWS, cols: padded };
        let values = UnpackedTiles { values: self.values.as_ptr(), count: dim / TILE_ROWS, cols: tokens };
        let sums = TileSums { start: out.sums.as_mut_ptr(), stride: dim };
        let no_factors = std::ptr::null();
        // SAFETY: operands and results have room for whole blocks, as asserted; `out` has a query for each `visible`.
        unsafe {
            let rows = RowBlocks { values: queries.as_ptr(), count: visible.len() };
            (bf16.product.multiply)(keys, rows, Sums { to: scores, adds: false, factors: no_factors });
            (bf16.softmax)(SoftmaxBlock {
                scores,
                visible,
                tokens,
                softcap,
                largest: out.largest,
                total: out.total,
                sums: &mut out.sums[..visible.len() * dim],
                weights: self.weights.as_mut_ptr(),
            });
            let rows = RowBlocks { values: self.weights.as_ptr(), count: visible.len() };
            (bf16.product.multiply)(values, rows, Sums { to: sums, adds: true, factors: no_factors });
        }
    }
}
