//! The kernels, written once over `Lanes`, and the table of those compiled for this machine.
//! Everything here works on raw parts of buffers; `ops` is the safe side.

// Token and query loops index several small arrays and raw offsets by the same number; zipped iterators hide that.
#![allow(clippy::needless_range_loop)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
pub(crate) mod append;
pub(crate) mod attention;
pub(crate) mod bf16;
pub(crate) mod byte_rows;
pub(crate) mod convert;
pub(crate) mod low_rank;
pub(crate) mod matmul;
pub(crate) mod ranges;
pub(crate) mod recurrent;
pub(crate) mod rows;
mod table;

pub use table::KernelSet;
pub(crate) use table::{Table, Wide};

/// Fetches a cache line that will be read soon.
#[inline(always)]
fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which may name any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
