//! Where the keys and values of a page are, for one head of one layer.

use std::ptr;

use ruvllm_runner::PageFormat;

/// The part of a page that belongs to one head of one layer.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub format: PageFormat,
    /// Lines of keys, then those of values.
    pub lines: *const u8,
    /// The scales of keys, then those of values.
    pub scales: *const u8,
}

impl Cell {
    /// No cell: nothing may be read.
    pub(crate) const NONE: Self = Self { format: PageFormat::F16, lines: ptr::null(), scales: ptr::null() };

    #[inline(always)]
    pub(crate) fn value_lines(&self, head_dim: usize) -> *const u8 {
        self.lines.wrapping_add(self.format.keys.line_bytes(head_dim))
    }

    #[inline(always)]
    pub(crate) fn value_scales(&self, head_dim: usize) -> *const u8 {
        self.scales.wrapping_add(self.format.keys.scale_bytes(head_dim))
    }
}

/// The cells of a chunk in the order of their tokens.
#[derive(Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub cells: &'a [Cell],
    /// Those of the chunk after it, whose keys are fetched while the values of this one are at work.
    pub next: &'a [Cell],
}
