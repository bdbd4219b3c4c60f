//! The layout of a page.
//!
//! A page holds 16 tokens of all layers and KV heads: first the lines of every (layer, head) cell, then the scales of
//! every cell, so that lines stay aligned to cache lines whatever the scales take. Layers that attend within a window come
//! behind all others, in a second part of the same order: a page that has left their window is the first part. Within a
//! cell, keys come before values. `d` is the head dimension, a multiple of 16; the last group of dimensions may be shorter than the others.
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

use crate::{KeyFormat, PAGE_TOKENS, PageFormat, PageLayers, ValueFormat};

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
    /// Cells of layers that attend to all tokens, and of those that attend within a window.
    global: Part,
    windowed: Part,
    pub page_bytes: usize,
}

/// Cells of one size: where the lines and the scales of the first stand.
#[derive(Clone, Copy, Debug)]
struct Part {
    layers: usize,
    /// Of a layer.
    heads: usize,
    /// Of a cell.
    line_bytes: usize,
    scale_bytes: usize,
    lines: usize,
    scales: usize,
}

impl PageLayout {
    pub fn new(format: PageFormat, shape: KvShape) -> Self {
        let part = |layers: usize, heads: KvHeads, lines: usize| {
            let line_bytes = format.keys.line_bytes(heads.dim) + format.values.line_bytes(heads.dim);
            let scale_bytes = format.keys.scale_bytes(heads.dim) + format.values.scale_bytes(heads.dim);
            let cells = layers * heads.count;
            let scales = lines + cells * line_bytes;
            let end = (scales + cells * scale_bytes).next_multiple_of(ALIGN);
            (Part { layers, heads: heads.count, line_bytes, scale_bytes, lines, scales }, end)
        };
        let (global, end) = part(shape.layers - shape.windowed_layers, shape.heads, 0);
        let (windowed, whole) = part(shape.windowed_layers, shape.windowed_heads, end);
        let page_bytes = if format.layers == PageLayers::Global { end } else { whole };
        Self { global, windowed, page_bytes }
    }

    /// Where the lines and the scales of a layer's KV head stand in the page.
    pub fn cell(&self, layer: usize, head: usize) -> (usize, usize) {
        let (part, layer) = match layer.checked_sub(self.global.layers) {
            Some(windowed) if self.windowed.layers > 0 => (self.windowed, windowed),
            _ => (self.global, layer),
        };
        let cell = layer * part.heads + head;
        (part.lines + cell * part.line_bytes, part.scales + cell * part.scale_bytes)
    }
}

/// Attention reads the keys and values of so many tokens at once, from a multiple of them on.
pub const CHUNK_TOKENS: usize = 128;

/// The KV heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    pub count: usize,
    /// Elements of a key, and of a value.
    pub dim: usize,
}

/// Dimensions of the keys and values of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// All layers with keys and values. In pages, those that attend within a window are the last.
    pub layers: usize,
    /// Of a layer that attends to all tokens.
    pub heads: KvHeads,
    /// How many layers attend within a window, where others do not; and the longest of these windows in tokens.
    pub windowed_layers: usize,
    pub window: usize,
    /// Of a layer that attends within a window.
    pub windowed_heads: KvHeads,
}

impl KvShape {
    /// A model whose layers all attend to all tokens.
    pub const fn new(layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        let heads = KvHeads { count: kv_heads, dim: head_dim };
        Self { layers, heads, windowed_layers: 0, window: 0, windowed_heads: heads }
    }

    /// The same with windows in some layers. Where all have one, pages are not told apart.
    pub fn with_windows(self, windowed_layers: usize, window: usize) -> Self {
        if windowed_layers < self.layers { Self { windowed_layers, window, ..self } } else { self }
    }

    /// The same with other heads in layers that attend within a window.
    pub const fn with_windowed_heads(self, windowed_heads: KvHeads) -> Self {
        Self { windowed_heads, ..self }
    }

    /// Returns the heads of a layer, by its number in pages.
    pub const fn heads_of(&self, layer: usize) -> KvHeads {
        if layer < self.layers - self.windowed_layers { self.heads } else { self.windowed_heads }
    }

    /// Returns how many pages at the beginning of a sequence of `tokens` tokens are not read by layers with a window, when
    /// the next token is computed.
    pub fn pages_behind_window(&self, tokens: usize) -> usize {
        if self.windowed_layers == 0 {
            return 0;
        }
        (tokens + 1).saturating_sub(self.window) / CHUNK_TOKENS * CHUNK_TOKENS / PAGE_TOKENS
    }

    /// Returns the layout of each format, by `PageFormat::index`.
    pub fn layouts(&self) -> [PageLayout; PageFormat::COUNT] {
        let mut formats = PageFormat::every();
        std::array::from_fn(|_| PageLayout::new(formats.next().expect("as many"), *self))
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
            for dim in (16..=512).step_by(16) {
                let layout = PageLayout::new(format, KvShape::new(3, 2, dim));
                assert!(layout.global.line_bytes.is_multiple_of(ALIGN), "{format} of {dim}: lines are not whole");
                assert!(layout.page_bytes.is_multiple_of(ALIGN));
                let scales = layout.global.scales;
                assert_eq!(layout.cell(3, 0), (scales, scales + 6 * layout.global.scale_bytes));
                assert_eq!(layout.cell(1, 2), layout.cell(2, 0));
                assert!(layout.page_bytes - layout.cell(3, 0).1 < ALIGN);
            }
        }
    }

    #[test]
    fn a_page_without_its_windows_is_the_beginning_of_the_whole_one() {
        let plain = KvShape::new(6, 2, 64);
        let shape = plain.with_windows(5, 512);
        for format in PageFormat::all() {
            let (whole, trimmed) = (PageLayout::new(format, shape), PageLayout::new(format.trimmed(), shape));
            assert!(trimmed.page_bytes * 5 < whole.page_bytes, "{format}");
            assert!((0..2).all(|head| whole.cell(0, head) == trimmed.cell(0, head)));
            assert!((1..6).all(|layer| whole.cell(layer, 0).0 >= trimmed.page_bytes));
            assert!(whole.page_bytes - PageLayout::new(format, plain).page_bytes <= ALIGN);
        }
        // With smaller heads in those layers, only they become smaller.
        let smaller = shape.with_windowed_heads(KvHeads { count: 1, dim: 32 });
        assert_eq!((smaller.heads_of(0), smaller.heads_of(5)), (shape.heads, smaller.windowed_heads));
        let [of_all, of_smaller] = [shape, smaller].map(|shape| shape.page_bytes(PageFormat::F16));
        assert_eq!((smaller.page_bytes(PageFormat::F16.trimmed()), of_smaller * 24), (of_all / 6, of_all * 9));
        assert_eq!(plain.with_windows(6, 512), plain, "there is nothing to tell apart");
        assert_eq!((plain.pages_behind_window(10_000), shape.pages_behind_window(600)), (0, 0));
        // The next token sees tokens from 489 on, whose chunk begins at 384.
        assert_eq!((shape.pages_behind_window(639), shape.pages_behind_window(1000)), (8, 24));
    }
}
