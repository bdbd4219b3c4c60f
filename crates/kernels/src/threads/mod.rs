//! Worker threads that run one parallel region per step, and the buffers that they share within it.

mod cores;
mod crew;
mod pool;
mod scratch;
mod shared;

pub use cores::Cores;
pub use pool::{Pool, Worker};
pub(crate) use scratch::{Buffer, Rounded, Scratch};
pub(crate) use shared::Access;
pub use shared::Shared;
