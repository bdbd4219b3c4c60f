//! Slice math for inference: weight formats, matmul, attention, norms, threads.
//! All SIMD and thread-sharing `unsafe` of the project lives here, behind safe functions. Knows nothing of models.

mod weight_type;

pub use weight_type::WeightType;
