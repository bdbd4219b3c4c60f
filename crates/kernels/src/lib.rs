//! Slice math for inference: weight formats, matmul, attention, norms, threads.
//! All SIMD and thread-sharing `unsafe` of the project lives here, behind safe functions. Knows nothing of models.

#![allow(unsafe_code)]
// Of kernels that unit tests do without.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod aligned;
mod allocator;
mod arena;
pub mod ceilings;
mod kernels;
mod lanes;
pub mod ops;
pub mod reference;
mod threads;
mod weights;

pub use allocator::{bound_allocator, trim_allocator};
pub use arena::Arena;
pub use kernels::KernelSet;
pub use threads::{Cores, Pool, Shared, Worker};
pub use weights::{PackError, PackedMatrix, QuantizeError, WeightType, dequantize_row, quantize_row};
