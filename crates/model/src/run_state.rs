//! The mutable buffers of a forward pass, allocated once for the largest batch.

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{Activations, Matrix};

use crate::Config;

/// Buffers for batches of up to `rows_max` rows, of which `logit_rows_max` give logits.
#[derive(Debug)]
pub struct RunState {
    pub(crate) rows_max: usize,
    pub(crate) logit_rows_max: usize,
    /// `0..rows_max`, for operations that take a selection of rows.
    pub(crate) all_rows: Vec<usize>,
    /// The residual stream. `[rows, hidden]`
    pub(crate) x: Matrix,
    /// `[rows, hidden]`
    pub(crate) normed: Activations,
    /// `[rows, heads + 2 kv_heads, head_dim]`
    pub(crate) qkv: Matrix,
    /// `[rows, heads, head_dim]`
    pub(crate) attended: Activations,
    /// `[rows, 2 feed_forward]`
    pub(crate) gate_up: Matrix,
    /// `[rows, feed_forward]`
    pub(crate) gated: Activations,
    /// `[logit_rows, hidden]`
    pub(crate) last: Activations,
    /// `[logit_rows, vocabulary]`
    pub(crate) logits: Matrix,
}

impl RunState {
    pub fn new(pool: &Pool, config: &Config, rows_max: usize, logit_rows_max: usize) -> Self {
        let (hidden, heads) = (config.hidden, config.heads);
        Self {
            rows_max,
            logit_rows_max,
            all_rows: (0..rows_max).collect(),
            x: Matrix::new(pool, rows_max, hidden),
            normed: Activations::new(pool, rows_max, hidden),
            qkv: Matrix::new(pool, rows_max, (heads + 2 * config.kv_heads) * config.head_dim),
            attended: Activations::new(pool, rows_max, heads * config.head_dim),
            gate_up: Matrix::new(pool, rows_max, 2 * config.feed_forward),
            gated: Activations::new(pool, rows_max, config.feed_forward),
            last: Activations::new(pool, logit_rows_max, hidden),
            logits: Matrix::new(pool, logit_rows_max, config.vocabulary),
        }
    }

    pub fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// The logits of the `i`-th row that was asked for in the last forward pass.
    pub fn logits(&mut self, i: usize) -> &mut [f32] {
        self.logits.row_mut(i)
    }
}
