//! Writing the keys and values of new tokens to their pages.

use std::ops::Range;

use super::{HEAD_DIM_MAX, KvMemory, Matrix, PAGE_TOKENS, RopeTable, SequenceRows};
use crate::threads::{Access, Worker};

/// Rotates the keys of `kv_heads` of a row of `qkv` (`[heads, then keys, then values of the KV heads]`), and writes them
/// with the values to the row's place in the pages of its sequence.
///
/// # Safety
/// By the partition that `access` names, the places of this token and these heads are this worker's.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn append(
    worker: &Worker<'_>,
    access: Access,
    qkv: &Matrix,
    sequence: &SequenceRows<'_>,
    row: usize,
    kv_heads: Range<usize>,
    rope: &RopeTable,
    kv: &KvMemory,
    layer: usize,
) {
    let dim = kv.shape.head_dim;
    let position = sequence.position(row);
    let (page, slot) = (sequence.pages[position / PAGE_TOKENS], position % PAGE_TOKENS);
    assert!(kv.format(page).is_appendable());
    let keys_and_values = &qkv.read_row(worker, row)[qkv.cols - 2 * kv.shape.kv_heads * dim..];
    let (keys, values) = keys_and_values.split_at(kv.shape.kv_heads * dim);
    let start = kv.data.write(worker, access).cast_const();
    let mut buffers = [[0f32; HEAD_DIM_MAX]; 2];
    let [key, value] = buffers.each_mut().map(|buffer| &mut buffer[..dim]);
    for head in kv_heads {
        key.copy_from_slice(&keys[head * dim..][..dim]);
        value.copy_from_slice(&values[head * dim..][..dim]);
        rope.rotate(key, position);
        kv.rotation.apply(key, dim);
        kv.rotation.apply(value, dim);
        let cell = kv.cells(start, layer, head).of(page);
        // SAFETY: both are one head; the page is in use and takes single tokens. No other worker touches this token's
        // bytes, by the caller's promise.
        unsafe { (worker.kernels().append)(key, value, slot, cell) };
    }
}
