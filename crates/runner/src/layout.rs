//! The layout of a page.
//!
//! A page holds 16 tokens of all layers and KV heads: first the lines of every (layer, head) cell, then the scales of
//! every cell, so that lines stay aligned to cache lines whatever the scales take. Within a cell, keys come before
//! values. `d` is the head dimension, a multiple of 16; the last group of dimensions may be shorter than the others.
//!
//! | part | lines | scales |
//! | --- | --- | --- |
//! | F16 keys | half floats `[d, 16 tokens]` | |
//! | F16 values | half floats `[16 tokens, d]` | |
//! | Q8 keys | bytes (code + 128) `[d / 4, 16 tokens, 4]` | half floats `[groups of 32, 16 tokens]` |
//! | Q8 values | signed bytes `[d / 16, 8 pairs of tokens, 16, 2 tokens]` | half floats `[groups of 64, 16 tokens]` |
//! | Q4 keys | nibbles: see below | bytes `[d]` scales, signed bytes `[d]` offsets, half float factors of both |
//! | Q6 keys | nibbles, then pairs of bits | as Q4 keys |
//! | Q4 values | nibbles `[d / 16, 2 halves of the tokens, 16, 2 tokens, 4 pairs]` | for each group of 64: bytes `[16 tokens]` scales, bytes `[16 tokens]` zero points, half float factor of the scales |
//!
//! Q8: `code * scale`. Q4 and Q6 keys: `offset + scale * (code - 8)` (or `- 32`), where scale and offset are a byte times
//! its factor. Q4 values: `scale * (code - zero / 16)`.
//!
//! Nibbles and pairs: a group of 32 dimensions is 8 quads, each a line of bytes `[16 tokens, 4]`. Quads `q` and `q + 4` share
//! a line, low nibble first; of two-bit parts, `q`, `q + 2`, `q + 4` and `q + 6` share one. All lines of nibbles
//! come before those of pairs. A last group of 16 dimensions has half as many quads and lines. Values: a word of 16 bits
//! holds every other of eight tokens, the first in its lowest nibble.

use crate::{KeyFormat, PAGE_TOKENS, PageFormat, ValueFormat};

/// Dimensions that share a scale of 8-bit keys.
pub const KEY_GROUP: usize = 32;
/// Dimensions that share a scale of values.
pub const VALUE_GROUP: usize = 64;
/// Bytes of scales for a group of 4-bit values: 16 scales, 16 zero points, a half float.
pub const ZERO_POINTS_BYTES: usize = 2 * PAGE_TOKENS + 2;
/// Pages and lines begin at cache lines.
const ALIGN: usize = 64;

impl KeyFormat {
    /// Bytes of the lines of a cell's keys.
    pub const fn line_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F16 => head_dim * PAGE_TOKENS * 2,
            Self::Q8 => head_dim * PAGE_TOKENS,
            Self::Q6 => head_dim * PAGE_TOKENS * 3 / 4,
            Self::Q4 => head_dim * PAGE_TOKENS / 2,
        }
    }

    /// Bytes of their scales.
    pub const fn scale_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F16 => 0,
            Self::Q8 => head_dim.div_ceil(KEY_GROUP) * PAGE_TOKENS * 2,
            Self::Q6 | Self::Q4 => head_dim * 2 + 4,
        }
    }
}

impl ValueFormat {
    /// Bytes of the lines of a cell's values.
    pub const fn line_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F16 => head_dim * PAGE_TOKENS * 2,
            Self::Q8 => head_dim * PAGE_TOKENS,
            Self::Q4 => head_dim * PAGE_TOKENS / 2,
        }
    }

    /// Bytes of their scales.
    pub const fn scale_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F16 => 0,
            Self::Q8 => head_dim.div_ceil(VALUE_GROUP) * PAGE_TOKENS * 2,
            Self::Q4 => head_dim.div_ceil(VALUE_GROUP) * ZERO_POINTS_BYTES,
        }
    }
}

/// Sizes of a page of one format.
#[derive(Clone, Copy, Debug)]
pub struct PageLayout {
    /// Of a cell.
    line_bytes: usize,
    scale_bytes: usize,
    /// Where the scales of the first cell stand.
    scales: usize,
    pub page_bytes: usize,
}

impl PageLayout {
    /// For `cells` pairs of layer and head.
    pub fn new(format: PageFormat, cells: usize, head_dim: usize) -> Self {
        let line_bytes = format.keys.line_bytes(head_dim) + format.values.line_bytes(head_dim);
        let scale_bytes = format.keys.scale_bytes(head_dim) + format.values.scale_bytes(head_dim);
        let scales = cells * line_bytes;
        Self { line_bytes, scale_bytes, scales, page_bytes: (scales + cells * scale_bytes).next_multiple_of(ALIGN) }
    }

    /// Where the lines and the scales of a cell stand in the page.
    pub fn cell(&self, cell: usize) -> (usize, usize) {
        (cell * self.line_bytes, self.scales + cell * self.scale_bytes)
    }
}

/// Dimensions of the keys and values of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl KvShape {
    /// Returns the layout of each format, by `PageFormat::index`.
    pub fn layouts(&self) -> [PageLayout; PageFormat::COUNT] {
        let mut formats = PageFormat::all();
        let cells = self.layers * self.kv_heads;
        std::array::from_fn(|_| PageLayout::new(formats.next().expect("as many"), cells, self.head_dim))
    }

    /// Bytes of a page of each format, by `PageFormat::index`.
    pub fn page_sizes(&self) -> [usize; PageFormat::COUNT] {
        self.layouts().map(|layout| layout.page_bytes)
    }

    /// Bytes of a page of one format.
    pub fn page_bytes(&self, format: PageFormat) -> usize {
        self.page_sizes()[format.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of a stored number, scales included, for heads of `dim`.
    fn bits(line_bytes: usize, scale_bytes: usize, dim: usize) -> f64 {
        (line_bytes + scale_bytes) as f64 * 8.0 / (dim * PAGE_TOKENS) as f64
    }

    #[test]
    fn formats_take_as_few_bits_as_promised() {
        for (format, most) in [(KeyFormat::F16, 16.0), (KeyFormat::Q8, 8.6), (KeyFormat::Q6, 7.1), (KeyFormat::Q4, 5.1)]
        {
            for dim in [64, 80, 96, 128, 256] {
                let got = bits(format.line_bytes(dim), format.scale_bytes(dim), dim);
                assert!(got <= most, "{format:?} keys of {dim}: {got}");
            }
        }
        for (format, most) in [(ValueFormat::F16, 16.0), (ValueFormat::Q8, 8.6), (ValueFormat::Q4, 4.6)] {
            for dim in [64, 80, 96, 128, 256] {
                let got = bits(format.line_bytes(dim), format.scale_bytes(dim), dim);
                assert!(got <= most, "{format:?} values of {dim}: {got}");
            }
        }
    }

    #[test]
    fn cells_follow_each_other_without_gaps() {
        for format in PageFormat::all() {
            for dim in (16..=256).step_by(16) {
                let layout = PageLayout::new(format, 6, dim);
                assert!(layout.line_bytes.is_multiple_of(ALIGN), "{format} of {dim}: lines are not whole");
                assert!(layout.page_bytes.is_multiple_of(ALIGN));
                assert_eq!(layout.cell(6), (layout.scales, layout.scales + 6 * layout.scale_bytes));
                assert!(layout.page_bytes - layout.cell(6).1 < ALIGN);
            }
        }
    }
}
