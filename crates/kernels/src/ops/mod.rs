//! The operations of a forward pass. Every thread of a region calls the same operations in the same order; each does
//! its share of the work. Results are complete after the next barrier.
//!
//! Beside them, what a search by likeness needs, on one thread: rows of bytes, and numbers in a range.

mod activations;
mod append;
mod attention;
mod batch_rows;
mod bf16_matrix;
mod byte_rows;
mod delta_net;
mod experts;
mod gemm;
mod head_transform;
mod host_pages;
mod host_states;
mod linear;
mod low_rank;
mod matmul;
mod matrix;
mod ranges;
mod rope;
mod rotation;
mod row_kernels;
mod rows;
mod short_conv;
pub mod slices;

pub use activations::Activations;
pub use attention::{Attention, AttentionShape, SplitResults};
pub use batch_rows::BatchRows;
pub use bf16_matrix::{Bf16Matrix, Factor, round_to_bf16};
pub use byte_rows::{ByteRow, ByteRows};
pub use delta_net::{DELTA_DIM_MAX, DeltaNet};
pub use experts::{ExpertBuffers, Experts, Routing, Scoring};
pub use gemm::{Gemm, Product};
pub use head_transform::{HeadTransform, QkNorm, Temperature};
pub use host_pages::HostPages;
pub use host_states::{DeltaShape, HostStates, LayerState, StateShape, TAPS_MAX};
pub use linear::{Linear, LinearError};
pub use low_rank::{Adapted, Adapter, AdapterRows, LowRank, LowRankPiece};
pub use matmul::{gated_cols, matmul, matmul_gated, matmul_gated_by, matmul_residual};
pub use matrix::Matrix;
pub use ranges::keep_in_range;
pub use rope::{RopeStyle, RopeTable};
pub use row_kernels::{RowKernels, RowOperation, normalize_by, normalize_rows_by, residual_norm_by};
pub use rows::{
    add_gated, add_norms, embed_rows, gate_rows, mix_rows, normalize, normalize_rows, put_rows, residual_norm, softcap,
};
pub use short_conv::CausalConv;
pub use slices::Activation;

/// The maximum head dimension; fixes the size of a thread's buffers.
pub const HEAD_DIM_MAX: usize = crate::kernels::append::HEAD_DIM_MAX;

use crate::Worker;

/// The rows of a batch that fall to a worker.
pub(crate) fn own_rows(worker: &Worker<'_>, rows: usize) -> impl Iterator<Item = usize> + use<> {
    (worker.index()..rows).step_by(worker.count())
}
