//! Rotary positions, and appending keys and values to their pages.

use super::kv_buffer::HEAD_DIM_MAX;
use super::{Batch, KvBuffer, Matrix, own_rows};
use crate::kernels::attention::PAGE_TOKENS;
use crate::threads::{Access, Worker};

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours `2i` and `2i + 1`.
    Neighbours,
    /// `i` and `i + rotated / 2`.
    Halves,
}

/// Sines and cosines of every position.
#[derive(Debug)]
pub struct RopeTable {
    /// `[positions, pairs]` of (cosine, sine)
    rotations: Vec<(f32, f32)>,
    pairs: usize,
    style: RopeStyle,
}

impl RopeTable {
    /// For `positions` positions; pair `i` turns by `frequencies[i]` for each.
    pub fn new(positions: usize, frequencies: &[f64], style: RopeStyle) -> Self {
        let rotations = (0..positions)
            .flat_map(|position| {
                frequencies.iter().map(move |frequency| {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    (cosine as f32, sine as f32)
                })
            })
            .collect();
        Self { rotations, pairs: frequencies.len(), style }
    }

    fn rotate(&self, head: &mut [f32], position: usize) {
        let rotations = &self.rotations[position * self.pairs..][..self.pairs];
        for (i, (cosine, sine)) in rotations.iter().enumerate() {
            let (a, b) = match self.style {
                RopeStyle::Neighbours => (2 * i, 2 * i + 1),
                RopeStyle::Halves => (i, i + self.pairs),
            };
            (head[a], head[b]) = (head[a] * cosine - head[b] * sine, head[a] * sine + head[b] * cosine);
        }
    }
}

/// Rotates queries and keys of `qkv` (`[rows, heads + 2 * kv_heads, head_dim]`) in place and writes keys and values
/// to the pages of their sequences.
pub fn rope_and_append(
    worker: &Worker<'_>,
    qkv: &Matrix,
    batch: &Batch<'_>,
    rope: &RopeTable,
    kv: &KvBuffer,
    layer: usize,
) {
    let shape = kv.shape;
    let dim = shape.head_dim;
    assert!(rope.pairs * 2 <= dim && layer < shape.layers);
    let heads = (qkv.cols / dim).checked_sub(2 * shape.kv_heads).expect("queries, keys and values");
    for sequence in batch.sequences() {
        for row in own_rows(worker, sequence.rows.end).filter(|row| sequence.rows.contains(row)) {
            let position = sequence.start + row - sequence.rows.start;
            // SAFETY: `row` is one of this worker's rows; the view is dropped at the end of the round.
            let values = unsafe { qkv.own_row_mut(worker, row) };
            let (rotated, values) = values.split_at_mut((heads + shape.kv_heads) * dim);
            rotated.chunks_exact_mut(dim).for_each(|head| rope.rotate(head, position));
            let cell = Cell { page: sequence.pages[position / PAGE_TOKENS] as usize, slot: position % PAGE_TOKENS };
            append(worker, kv, layer, cell, &rotated[heads * dim..], values);
        }
    }
}

/// Where a token lives.
#[derive(Clone, Copy)]
struct Cell {
    page: usize,
    slot: usize,
}

/// Writes the keys and values (`[kv_heads, head_dim]`) of one token of this worker's share.
fn append(worker: &Worker<'_>, kv: &KvBuffer, layer: usize, cell: Cell, keys: &[f32], values: &[f32]) {
    let dim = kv.shape.head_dim;
    let start = kv.data.write(worker, Access::WriteRows);
    assert!(cell.page < kv.pages() && cell.slot < PAGE_TOKENS && layer < kv.shape.layers);
    let page = cell.page * kv.shape.page_len();
    let to_half = worker.kernels().to_half;
    let mut halves = [0u16; HEAD_DIM_MAX];
    let halves = &mut halves[..dim];
    for (head, (keys, values)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
        assert!(head < kv.shape.kv_heads);
        // SAFETY: lengths match; in bounds, by the checks above. `Batch` lets no two sequences write one page, and
        // the rows of a sequence have cells of their own, so no other worker touches these elements in this phase.
        unsafe {
            to_half(keys, halves);
            let to = start.add(page + kv.keys_at(layer, head) + cell.slot);
            for (d, key) in halves.iter().enumerate() {
                *to.add(d * PAGE_TOKENS) = *key;
            }
            to_half(values, halves);
            let to = start.add(page + kv.values_at(layer, head) + cell.slot * dim);
            to.copy_from_nonoverlapping(halves.as_ptr(), dim);
        }
    }
}
