//! What host and kernels agree on.
//!
//! A module exports its memory, `__heap_base` (from where on the host may use the memory), and functions from one `i32` to one:
//!
//! - `kernel_info(info_ptr)` writes four little-endian u32: the version of this interface, the alignment that tensors need, the
//!   bytes of scratch memory that each call needs, and 0.
//! - `kernel_init(params_ptr, params_len)` is called once for an instance, with the parameters that the manifest declares.
//! - `kernel_forward(descriptor_ptr)`, or the entry point that the manifest names for a kernel, computes.
//! - `kernel_cleanup()` is called before an instance that went well is dropped.
//! - `kernel_backward(descriptor_ptr)` is optional, and not called by this version.
//!
//! All of them return a code, of which 0 is success.

use std::fmt;

/// The version of the interface.
pub const ABI_VERSION: u32 = 1;

/// What `kernel_info` writes.
pub(crate) const INFO_BYTES: usize = 16;
/// What a descriptor takes.
pub(crate) const DESCRIPTOR_BYTES: usize = 40;

/// Why a kernel says that it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelCode {
    InvalidInput,
    InvalidOutput,
    InvalidParameters,
    OutOfMemory,
    NotImplemented,
    Internal,
    /// A number that means nothing.
    Unknown(i32),
}

impl KernelCode {
    /// Returns what a returned number means; `None` is success.
    pub(crate) fn of(code: i32) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::InvalidInput,
            2 => Self::InvalidOutput,
            3 => Self::InvalidParameters,
            4 => Self::OutOfMemory,
            5 => Self::NotImplemented,
            6 => Self::Internal,
            other => Self::Unknown(other),
        })
    }
}

impl fmt::Display for KernelCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidInput => f.write_str("1 (invalid input)"),
            Self::InvalidOutput => f.write_str("2 (invalid output)"),
            Self::InvalidParameters => f.write_str("3 (invalid parameters)"),
            Self::OutOfMemory => f.write_str("4 (out of memory)"),
            Self::NotImplemented => f.write_str("5 (not implemented)"),
            Self::Internal => f.write_str("6 (internal error)"),
            Self::Unknown(code) => write!(f, "{code} (which means nothing)"),
        }
    }
}

/// Part of a kernel's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub offset: u32,
    pub size: u32,
}

/// Where the tensors of a call are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Descriptor {
    pub a: Span,
    /// Empty if the operation has one input.
    pub b: Span,
    pub out: Span,
    pub scratch: Span,
    pub params: Span,
}

impl Descriptor {
    pub fn to_bytes(self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let spans = [self.a, self.b, self.out, self.scratch, self.params];
        let numbers = spans.iter().flat_map(|span| [span.offset, span.size]);
        for (to, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// What a module says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub abi: u32,
    pub alignment: u32,
    pub scratch_bytes: u32,
}

impl Info {
    pub fn from_bytes(bytes: &[u8; INFO_BYTES]) -> Self {
        let at = |i: usize| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
        Self { abi: at(0), alignment: at(1), scratch_bytes: at(2) }
    }
}
