//! Writing the keys and values of new tokens to their pages.

use std::ops::Range;

use ruvllm_runner::{KvHeads, PAGE_TOKENS, SequenceRows};

use super::rotation::apply_rotation;
use super::{Attention, HEAD_DIM_MAX};
use crate::threads::{Access, Worker};

/// Transforms the keys of `kv_heads` of a row of `qkv` (`[heads, then keys, then values of the KV heads]`), and writes them
/// with the values to the row's place in the pages of its sequence.
///
/// # Safety
/// By the partition that `access` names, the places of this token and these heads are this worker's.
pub(super) unsafe fn append(
    attention: &Attention<'_>,
    worker: &Worker<'_>,
    access: Access,
    sequence: &SequenceRows,
    row: usize,
    kv_heads: Range<usize>,
) {
    let Attention { qkv, batch, pages, layer, transform, .. } = attention;
    let KvHeads { count: all_heads, dim } = attention.kv_heads();
    let position = sequence.position(row);
    let (page, slot) = (batch.pages(sequence)[position / PAGE_TOKENS], position % PAGE_TOKENS);
    let keys_and_values = &qkv.read_row(worker, row)[qkv.cols - 2 * all_heads * dim..];
    let (keys, values) = keys_and_values.split_at(all_heads * dim);
    let start = pages.data.write(worker, access).cast_const();
    let mut buffers = [[0f32; HEAD_DIM_MAX]; 2];
    let [key, value] = buffers.each_mut().map(|buffer| &mut buffer[..dim]);
    for head in kv_heads {
        key.copy_from_slice(&keys[head * dim..][..dim]);
        value.copy_from_slice(&values[head * dim..][..dim]);
        transform.key(worker, key, position);
        transform.value(worker, value);
        apply_rotation(pages.rotation, key, dim);
        apply_rotation(pages.rotation, value, dim);
        let cell = pages.cells(start, *layer, head).at(page);
        // SAFETY: both are one head; the batch was checked: the page is within the memory and takes single tokens. No
        // other worker touches this token's bytes, by the caller's promise.
        unsafe { (worker.kernels().append)(key, value, slot, cell) };
    }
}
