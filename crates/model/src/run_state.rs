//! The mutable buffers of a forward pass, allocated once for the largest batch.

use ruvllm_kernels::ops::{Activations, Matrix, SharedItems};

/// Buffers for batches of up to `rows_max` rows, of which `logit_rows_max` give logits. A model makes its own.
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
    pub(crate) shared_items: SharedItems,
    /// `[rows, heads, head_dim]`
    pub(crate) attended: Activations,
    /// `[rows, feed_forward]`
    pub(crate) gated: Activations,
    /// `[logit_rows, hidden]`
    pub(crate) last: Activations,
    /// `[logit_rows, vocabulary]`
    pub(crate) logits: Matrix,
}

impl RunState {
    pub fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// The logits of the `i`-th row that was asked for in the last forward pass.
    pub fn logits(&mut self, i: usize) -> &mut [f32] {
        self.logits.row_mut(i)
    }
}
