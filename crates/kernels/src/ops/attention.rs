//! Attention of a batch over the pages of its sequences.

use super::kv_buffer::HEAD_DIM_MAX;
use super::{Activations, Batch, KvBuffer, Matrix, SequenceRows};
use crate::kernels::attention::{PageParts, QUERIES_MAX, Queries};
use crate::threads::{Access, Worker};

/// What attention needs to know of a model.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    /// What scores are multiplied by, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// For every row, attention of its queries (the first part of a row of `qkv`) over all tokens up to its own.
/// Work items are (block of rows, KV head); queries that share keys and values are taken together.
pub fn attention(
    worker: &Worker<'_>,
    qkv: &Matrix,
    batch: &Batch<'_>,
    kv: &KvBuffer,
    layer: usize,
    shape: AttentionShape,
    out: &Activations,
) {
    let group = shape.heads / kv.shape.kv_heads;
    assert!(shape.heads == group * kv.shape.kv_heads);
    assert!(qkv.cols >= shape.heads * kv.shape.head_dim && out.cols() == shape.heads * kv.shape.head_dim);
    let block_rows = (QUERIES_MAX / group).max(1);
    let mut item = 0;
    for sequence in batch.sequences() {
        for first in sequence.rows.clone().step_by(block_rows) {
            let rows = first..sequence.rows.end.min(first + block_rows);
            for head in 0..kv.shape.kv_heads {
                if item % worker.count() == worker.index() {
                    let block = Block { sequence, rows: rows.clone(), heads: head * group..(head + 1) * group };
                    attend_block(worker, qkv, kv, layer, shape, head, &block, out);
                }
                item += 1;
            }
        }
    }
}

/// Some rows of a sequence and the query heads of one KV head.
struct Block<'a> {
    sequence: &'a SequenceRows<'a>,
    rows: std::ops::Range<usize>,
    heads: std::ops::Range<usize>,
}

#[allow(clippy::too_many_arguments)]
fn attend_block(
    worker: &Worker<'_>,
    qkv: &Matrix,
    kv: &KvBuffer,
    layer: usize,
    shape: AttentionShape,
    kv_head: usize,
    block: &Block<'_>,
    out: &Activations,
) {
    let dim = kv.shape.head_dim;
    let mut vectors = [0f32; QUERIES_MAX * HEAD_DIM_MAX];
    let mut results = [0f32; QUERIES_MAX * HEAD_DIM_MAX];
    let mut visible = [0usize; QUERIES_MAX];
    let pair = |i: usize| (block.rows.start + i / block.heads.len(), block.heads.start + i % block.heads.len());
    let count = block.rows.len() * block.heads.len();
    for first in (0..count).step_by(QUERIES_MAX) {
        let queries = QUERIES_MAX.min(count - first);
        for i in 0..queries {
            let (row, head) = pair(first + i);
            let query = &qkv.read_row(worker, row)[head * dim..][..dim];
            for (to, from) in vectors[i * dim..][..dim].iter_mut().zip(query) {
                *to = from * shape.scale;
            }
            visible[i] = block.sequence.start + row - block.sequence.rows.start + 1;
        }
        let attended = Queries {
            vectors: &vectors[..queries * dim],
            visible: &visible[..queries],
            out: &mut results[..queries * dim],
            head_dim: dim,
        };
        let data = kv.data.read(worker);
        assert!(layer < kv.shape.layers && kv_head < kv.shape.kv_heads);
        let parts = PageParts {
            pages: block.sequence.pages,
            keys: data[kv.keys_at(layer, kv_head)..].as_ptr(),
            values: data[kv.values_at(layer, kv_head)..].as_ptr(),
            stride: kv.shape.page_len(),
        };
        // SAFETY: `Batch` checked that the pages exist and cover the tokens; slices have the lengths described.
        unsafe { (worker.kernels().attend)(attended, parts) };
        let start = out.floats.data.write(worker, Access::WriteHeads);
        for i in 0..queries {
            let (row, head) = pair(first + i);
            assert!(row < out.floats.rows && (head + 1) * dim <= out.floats.cols);
            // SAFETY: in bounds; each (row, head) belongs to one item, and each item to one worker.
            let to = unsafe { std::slice::from_raw_parts_mut(start.add(row * out.floats.cols + head * dim), dim) };
            to.copy_from_slice(&results[i * dim..][..dim]);
        }
    }
}
