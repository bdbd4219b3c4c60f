//! Writing the keys and values of new tokens to their pages.

use std::ops::Range;

use super::kv_buffer::HEAD_DIM_MAX;
use super::{KvBuffer, Matrix, RopeTable, SequenceRows};
use crate::kernels::attention::PAGE_TOKENS;
use crate::threads::{Access, Worker};

/// Rotates the keys of `kv_heads` of a row of `qkv` (`[heads, then keys, then values of the KV heads]`), and writes them
/// with the values to the row's cell in the pages of its sequence.
///
/// # Safety
/// By the partition that `access` names, these cells are this worker's.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn append(
    worker: &Worker<'_>,
    access: Access,
    qkv: &Matrix,
    sequence: &SequenceRows<'_>,
    row: usize,
    kv_heads: Range<usize>,
    rope: &RopeTable,
    kv: &KvBuffer,
    layer: usize,
) {
    let dim = kv.shape.head_dim;
    let position = sequence.position(row);
    let (page, slot) = (sequence.pages[position / PAGE_TOKENS] as usize, position % PAGE_TOKENS);
    assert!(page < kv.pages());
    let keys_and_values = &qkv.read_row(worker, row)[qkv.cols - 2 * kv.shape.kv_heads * dim..];
    let (keys, values) = keys_and_values.split_at(kv.shape.kv_heads * dim);
    let page_start = page * kv.shape.cell_len();
    let start = kv.data.write(worker, access);
    let to_half = worker.kernels().to_half;
    let (mut rotated, mut halves) = ([0f32; HEAD_DIM_MAX], [0u16; HEAD_DIM_MAX]);
    let (rotated, halves) = (&mut rotated[..dim], &mut halves[..dim]);
    for head in kv_heads {
        rotated.copy_from_slice(&keys[head * dim..][..dim]);
        rope.rotate(rotated, position);
        // SAFETY: lengths match; in bounds, because page, layer and head exist. No other worker touches these cells, by
        // the caller's promise.
        unsafe {
            to_half(rotated, halves);
            let to = start.add(page_start + kv.keys_at(layer, head) + slot);
            for (d, key) in halves.iter().enumerate() {
                *to.add(d * PAGE_TOKENS) = *key;
            }
            to_half(&values[head * dim..][..dim], halves);
            let to = start.add(page_start + kv.values_at(layer, head) + slot * dim);
            to.copy_from_nonoverlapping(halves.as_ptr(), dim);
        }
    }
}
