//! Names for pages, and where their bytes are.

use std::fmt;

use crate::PageFormat;

/// Tokens per KV page.
pub const PAGE_TOKENS: usize = 16;

/// What systems hand out at once. Page memory begins at one of these where it is as large, and slabs are made of them.
pub const HUGE_PAGE: usize = 2 << 20;

/// A KV page while it is in use. The id stays the same when the page moves or changes its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// Where the bytes of a page begin, and in which format they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLocation {
    /// In bytes from the beginning of the page memory.
    pub offset: usize,
    pub format: PageFormat,
}

/// The basis in which keys, values and queries are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rotation {
    /// As the model computes them.
    #[default]
    None,
    /// Spread by a Hadamard matrix, in blocks of the largest power of two that divides the head dimension, so that no
    /// dimension is much larger than the others. Scores stay the same, and the same step turns results back.
    Hadamard,
}
