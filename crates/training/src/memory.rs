//! What a run takes of the machine's memory, known before it begins.

use crate::base::{Base, SITES, Shape};
use crate::head::HeadSizes;
use crate::lora::LoraWeights;

/// Bytes that a run takes, beside the pages of the model's file that the system keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunMemory {
    /// Inputs of all layers.
    pub checkpoints: usize,
    /// Weights of the layer and the part of the output matrix at hand, and everything that is computed with them.
    pub buffers: usize,
    /// Factors, gradients, moments, and the best factors so far.
    pub factors: usize,
}

impl RunMemory {
    /// Returns what steps of `rows` tokens take on so many threads.
    pub fn of(base: &Base, weights: &LoraWeights, rows: usize, threads: usize) -> Self {
        let shape = &base.shape;
        let ranks = weights.site_ranks();
        let (float, rounded) = (size_of::<f32>(), size_of::<u16>());
        let checkpoints = (base.layers.len() + 2) * rows * shape.hidden * float;
        let head = head_bytes(shape, rows);
        let left = left_numbers(shape, ranks, rows) * rounded;
        let attention = threads * attention_bytes(shape, rows) + found_bytes(shape, rows);
        let buffers = layer_bytes(shape, ranks, rows) + head + left + attention;
        Self { checkpoints, buffers, factors: 5 * weights.numbers.len() * float }
    }

    pub fn total(&self) -> usize {
        self.checkpoints + self.buffers + self.factors
    }
}

/// Returns the numbers of the largest left factor of a product, with what it is padded to.
pub(crate) fn left_numbers(shape: &Shape, ranks: [usize; SITES], rows: usize) -> usize {
    const ROWS: usize = 64;
    const COLS: usize = 32;
    let numbers = |rows: usize, cols: usize| rows.next_multiple_of(ROWS) * cols.next_multiple_of(COLS);
    let of_sites = shape.sites().into_iter().zip(ranks).flat_map(|((site_rows, site_cols), ranks)| {
        [numbers(rows, site_rows.max(site_cols)), numbers(site_rows, rows), numbers(ranks, rows), numbers(rows, ranks)]
    });
    let HeadSizes { targets, part, .. } = HeadSizes::new(shape, rows);
    of_sites.chain([numbers(targets, part), numbers(targets, shape.hidden)]).max().unwrap_or(0)
}

fn layer_bytes(shape: &Shape, ranks: [usize; SITES], rows: usize) -> usize {
    let (float, rounded) = (size_of::<f32>(), size_of::<u16>());
    let sites = shape.sites().into_iter().zip(ranks).map(|((site_rows, cols), ranks)| {
        let factors = (site_rows + cols) * ranks * (rounded + float) + rows * ranks * (float + 2 * rounded);
        site_rows * cols * rounded + factors
    });
    let Shape { hidden, width, .. } = *shape;
    let (queries, qkv) = (shape.queries(), shape.queries() + 2 * shape.keys());
    let floats = 4 * hidden + 2 * qkv + queries + 3 * width;
    let halves = 3 * hidden + queries + qkv + 3 * width;
    sites.sum::<usize>() + rows * (floats * float + halves * rounded)
}

fn head_bytes(shape: &Shape, rows: usize) -> usize {
    let HeadSizes { targets, parts, part } = HeadSizes::new(shape, rows);
    let (float, rounded) = (size_of::<f32>(), size_of::<u16>());
    let logits = targets * part * (parts * float + rounded);
    logits + part * shape.hidden * rounded + targets * shape.hidden * (float + rounded)
}

/// Returns what a thread needs for the heads that share keys and values, if one item fills the step.
fn attention_bytes(shape: &Shape, rows: usize) -> usize {
    const LANES: usize = 16;
    let padded = rows.next_multiple_of(LANES);
    let group = shape.heads / shape.kv_heads;
    (2 * rows * padded + (6 + 3 * group) * padded * shape.head_dim) * size_of::<f32>()
}

/// Returns what the results of all heads take until they are put into rows.
fn found_bytes(shape: &Shape, rows: usize) -> usize {
    rows * (shape.queries() + 2 * shape.keys()) * size_of::<f32>()
}
