//! Attention of one item's heads that share keys and values, and its gradient.
//!
//! Scores of a row are made of the transposed keys, so that all sums run over whole vectors. Probabilities are not kept from the
//! forward pass: the backward pass makes them again.

use std::ops::Range;

use ruvllm_kernels::KernelSet;
use ruvllm_kernels::ops::slices::{Strided, add_weighted_rows};

use crate::base::{Attention, Shape};
use crate::norm::dot;

/// Numbers of a vector: rows of scores have whole ones.
const LANES: usize = 16;

/// The heads of one item that share keys and values.
#[derive(Clone, Copy)]
pub(crate) struct HeadGroup<'a> {
    pub kernels: KernelSet,
    pub shape: Shape,
    pub attention: &'a Attention,
    /// Queries, keys and values of the item's rows, ready to meet. `[rows, queries + 2 keys]`
    pub heads: &'a [f32],
    /// Number of the keys and values.
    pub kv_head: usize,
}

/// Gradients of queries, keys and values.
pub(crate) struct HeadGradients {
    /// `[rows, heads of the group, head_dim]`
    pub queries: Vec<f32>,
    /// `[rows, head_dim]` each
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

impl HeadGroup<'_> {
    fn stride(&self) -> usize {
        self.shape.queries() + 2 * self.shape.keys()
    }

    fn rows(&self) -> usize {
        self.heads.len() / self.stride()
    }

    /// Returns how many heads share the keys and values.
    fn size(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// Copies one head of all rows.
    fn column(&self, first: usize) -> Vec<f32> {
        self.heads.chunks_exact(self.stride()).flat_map(|row| &row[first..][..self.shape.head_dim]).copied().collect()
    }

    fn query(&self, number: usize) -> Vec<f32> {
        self.column((self.kv_head * self.size() + number) * self.shape.head_dim)
    }

    fn keys(&self) -> Vec<f32> {
        self.column(self.shape.queries() + self.kv_head * self.shape.head_dim)
    }

    fn values(&self) -> Vec<f32> {
        self.column(self.shape.queries() + self.shape.keys() + self.kv_head * self.shape.head_dim)
    }

    /// Returns the rows that a row attends to.
    fn visible(&self, row: usize) -> Range<usize> {
        let first = self.attention.window.map_or(0, |window| (row + 1).saturating_sub(window));
        first..row + 1
    }

    /// `out[row] += weights . columns[..][row]` for whole vectors around the visible rows.
    fn products(&self, weights: &[f32], columns: &[f32], visible: &Range<usize>, out: &mut [f32]) {
        let padded = out.len();
        let (first, end) = (visible.start / LANES * LANES, visible.end.next_multiple_of(LANES));
        let weights = Strided { numbers: weights, stride: 1, count: weights.len() };
        add_weighted_rows(self.kernels, weights, &columns[first..], padded, &mut out[first..end]);
    }

    /// Writes a row's capped scores and the probabilities of the rows that it sees.
    fn attend(&self, query: &[f32], keys: &[f32], visible: &Range<usize>, scores: &mut [f32], out: &mut [f32]) {
        scores.fill(0.0);
        self.products(query, keys, visible, scores);
        out.fill(0.0);
        let (scores, out) = (&mut scores[visible.clone()], &mut out[visible.clone()]);
        scores.iter_mut().for_each(|score| *score *= self.attention.scale);
        if let Some(cap) = self.attention.softcap {
            scores.iter_mut().for_each(|score| *score = cap * (*score / cap).tanh());
        }
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        out.iter_mut().zip(&*scores).for_each(|(out, score)| *out = (score - largest).exp());
        let total: f32 = out.iter().sum();
        out.iter_mut().for_each(|out| *out /= total);
    }

    /// Returns what the rows have found. `[rows, heads of the group, head_dim]`
    pub fn forward(&self) -> Vec<f32> {
        let (rows, head_dim) = (self.rows(), self.shape.head_dim);
        let padded = rows.next_multiple_of(LANES);
        let (keys, values) = (transposed(&self.keys(), head_dim, padded), self.values());
        let mut found = vec![0.0; rows * self.size() * head_dim];
        let (mut scores, mut probabilities) = (vec![0.0; padded], vec![0.0; padded]);
        for head in 0..self.size() {
            let queries = self.query(head);
            for (row, query) in queries.chunks_exact(head_dim).enumerate() {
                let visible = self.visible(row);
                self.attend(query, &keys, &visible, &mut scores, &mut probabilities);
                let out = &mut found[(row * self.size() + head) * head_dim..][..head_dim];
                let weights = Strided { numbers: &probabilities[visible.start..], stride: 1, count: visible.len() };
                add_weighted_rows(self.kernels, weights, &values[visible.start * head_dim..], head_dim, out);
            }
        }
        found
    }

    /// Returns the gradients, given those of what the rows have found.
    pub fn backward(&self, of_found: &[f32]) -> HeadGradients {
        let (rows, head_dim) = (self.rows(), self.shape.head_dim);
        let mut gradients = HeadGradients {
            queries: vec![0.0; rows * self.size() * head_dim],
            keys: vec![0.0; rows * head_dim],
            values: vec![0.0; rows * head_dim],
        };
        let padded = rows.next_multiple_of(LANES);
        let (keys, values) = (self.keys(), transposed(&self.values(), head_dim, padded));
        let (keys_turned, mut scores) = (transposed(&keys, head_dim, padded), vec![0.0; padded]);
        let (mut probabilities, mut of_scores) = (vec![0.0; rows * padded], vec![0.0; rows * padded]);
        for head in 0..self.size() {
            let queries = self.query(head);
            let of_head =
                of_found.chunks_exact(self.size() * head_dim).flat_map(|row| &row[head * head_dim..][..head_dim]);
            let of_head: Vec<f32> = of_head.copied().collect();
            for row in 0..rows {
                let visible = self.visible(row);
                let probabilities = &mut probabilities[row * padded..][..padded];
                let of_scores = &mut of_scores[row * padded..][..padded];
                self.attend(&queries[row * head_dim..][..head_dim], &keys_turned, &visible, &mut scores, probabilities);
                of_scores.fill(0.0);
                self.products(&of_head[row * head_dim..][..head_dim], &values, &visible, of_scores);
                self.of_scores(probabilities, &scores, of_scores);
                let out = &mut gradients.queries[(row * self.size() + head) * head_dim..][..head_dim];
                let weights = Strided { numbers: &of_scores[visible.start..], stride: 1, count: visible.len() };
                add_weighted_rows(self.kernels, weights, &keys[visible.start * head_dim..], head_dim, out);
            }
            self.add_columns(&of_scores, padded, &queries, &mut gradients.keys);
            self.add_columns(&probabilities, padded, &of_head, &mut gradients.values);
        }
        gradients
    }

    /// Turns the gradients of a row's probabilities, in place, into those of its scores before scale and cap.
    fn of_scores(&self, probabilities: &[f32], capped: &[f32], gradient: &mut [f32]) {
        let mean = dot(probabilities, gradient);
        for ((gradient, probability), capped) in gradient.iter_mut().zip(probabilities).zip(capped) {
            let slope = self.attention.softcap.map_or(1.0, |cap| 1.0 - (capped / cap) * (capped / cap));
            *gradient = probability * (*gradient - mean) * slope * self.attention.scale;
        }
    }

    /// Adds to each row of `out` those rows that have seen it, by what stands in its column.
    fn add_columns(&self, by: &[f32], padded: usize, rows: &[f32], out: &mut [f32]) {
        let (count, head_dim) = (self.rows(), self.shape.head_dim);
        for (row, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let end = self.attention.window.map_or(count, |window| count.min(row + window));
            let weights = Strided { numbers: &by[row * padded + row..], stride: padded, count: end - row };
            add_weighted_rows(self.kernels, weights, &rows[row * head_dim..], head_dim, out);
        }
    }
}

/// Returns the columns of `rows` as rows of `padded` numbers.
fn transposed(rows: &[f32], cols: usize, padded: usize) -> Vec<f32> {
    let mut out = vec![0.0; cols * padded];
    for (row, numbers) in rows.chunks_exact(cols).enumerate() {
        for (col, number) in numbers.iter().enumerate() {
            out[col * padded + row] = *number;
        }
    }
    out
}
