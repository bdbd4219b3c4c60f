//! The kernels, written once over `Lanes`, and the table of those compiled for this machine.
//! Everything here works on raw parts of buffers; `ops` is the safe side.

// Token and query loops index several small arrays and raw offsets by the same number; zipped iterators hide that.
#![allow(clippy::needless_range_loop)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
pub(crate) mod attention;
pub(crate) mod matmul;
pub(crate) mod rows;
mod table;

pub use table::KernelSet;
pub(crate) use table::{Table, Wide};
