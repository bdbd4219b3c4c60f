//! The operations of a forward pass. Every thread of a region calls the same operations in the same order; each does
//! its share of the work. Results are complete after the next barrier.
//!
//! Beside them, what a search by likeness needs, on one thread: rows of bytes, and numbers in a range.

mod activations;
mod append;
mod attention;
mod batch;
mod byte_rows;
mod convert;
mod kv_memory;
mod linear;
mod matmul;
mod matrix;
mod ranges;
mod rope;
mod rotation;
mod rows;

pub use activations::Activations;
pub use attention::{Attention, AttentionShape, SharedItems};
pub use batch::{Batch, BatchError, PageId, SequenceRows};
pub use byte_rows::{ByteRow, ByteRows};
pub use convert::ConvertError;
pub use kv_memory::{HEAD_DIM_MAX, KvMemory, KvShape, PAGE_TOKENS, RestoreError};
pub use linear::{Linear, LinearError};
pub use matmul::{matmul, matmul_residual, matmul_swiglu};
pub use matrix::Matrix;
pub use ranges::keep_in_range;
pub use rope::{RopeStyle, RopeTable};
pub use rotation::Rotation;
pub use rows::normalize;

pub use crate::pages::{KeyFormat, PageFormat, ValueFormat};

use crate::Worker;

/// The rows of a batch that fall to a worker.
pub(crate) fn own_rows(worker: &Worker<'_>, rows: usize) -> impl Iterator<Item = usize> + use<> {
    (worker.index()..rows).step_by(worker.count())
}
