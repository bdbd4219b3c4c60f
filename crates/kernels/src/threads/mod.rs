//! Worker threads that run one parallel region per step, and the buffers that they share within it.

mod active_threads;
mod cores;
mod pass_clock;
mod pool;
mod scratch;
mod shared;

pub use cores::Cores;
pub(crate) use pass_clock::Part;
pub use pool::{Pool, Worker};
pub(crate) use scratch::{AttentionOperands, Buffer, QuantizedBuffers, Scratch};
pub(crate) use shared::Access;
pub use shared::Shared;
