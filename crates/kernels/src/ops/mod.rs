//! The operations of a forward pass. Every thread of a region calls the same operations in the same order; each does
//! its share of the work. Results are complete after the next barrier.

mod attention;
mod kv_buffer;
mod linear;
mod matrix;
mod rope;
mod rows;

pub use attention::{AttentionShape, attention};
pub use kv_buffer::{Batch, BatchError, HEAD_DIM_MAX, KvBuffer, KvShape, PAGE_TOKENS, SequenceRows};
pub use linear::{Linear, LinearError, Output, matmul};
pub use matrix::{Activations, Matrix};
pub use rope::{RopeStyle, RopeTable, rope_and_append};
pub use rows::{quantize, rms_norm, swiglu};

use crate::Worker;

/// The rows of a batch that fall to a worker: every `count`-th, so that causal attention's growing cost is shared.
pub(crate) fn own_rows(worker: &Worker<'_>, rows: usize) -> impl Iterator<Item = usize> + use<> {
    (worker.index()..rows).step_by(worker.count())
}
