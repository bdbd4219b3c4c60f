//! The memory of KV pages, and which rows of a batch belong to which tokens of which pages.

use std::ops::Range;

use crate::Pool;
use crate::kernels::attention;
use crate::threads::Shared;

/// Tokens per KV page.
pub const PAGE_TOKENS: usize = attention::PAGE_TOKENS;

/// The head dimension at most; fixes the size of a thread's buffers.
pub const HEAD_DIM_MAX: usize = 256;

/// Dimensions of the keys and values of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl KvShape {
    /// Elements of the keys (or values) of one head in one layer of a page.
    pub(crate) fn head_len(&self) -> usize {
        self.head_dim * PAGE_TOKENS
    }

    /// Elements of a page: `[layers, keys and values, kv_heads, head_len]`.
    pub(crate) fn page_len(&self) -> usize {
        self.layers * 2 * self.kv_heads * self.head_len()
    }
}

/// Half-float keys and values of all pages. Memory is taken when a page is first written.
#[derive(Debug)]
pub struct KvBuffer {
    pub(crate) data: Shared<u16>,
    pub(crate) shape: KvShape,
    pages: usize,
}

impl KvBuffer {
    /// Panics if the head dimension is not a multiple of 16 or above `HEAD_DIM_MAX`.
    pub fn new(pool: &Pool, shape: KvShape, pages: usize) -> Self {
        assert!(shape.head_dim <= HEAD_DIM_MAX, "head dimension {} is above {HEAD_DIM_MAX}", shape.head_dim);
        assert!(shape.head_dim.is_multiple_of(16), "head dimension {} is not a multiple of 16", shape.head_dim);
        Self { data: Shared::zeroed(pool, pages * shape.page_len()), shape, pages }
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Where the keys of `head` in `layer` of page 0 start; those of page `p` are `p * page_len` further.
    pub(crate) fn keys_at(&self, layer: usize, head: usize) -> usize {
        (layer * 2 * self.shape.kv_heads + head) * self.shape.head_len()
    }

    pub(crate) fn values_at(&self, layer: usize, head: usize) -> usize {
        self.keys_at(layer, head + self.shape.kv_heads)
    }
}

/// Consecutive rows of a batch that are consecutive tokens of one sequence.
#[derive(Clone, Debug)]
pub struct SequenceRows<'a> {
    pub rows: Range<usize>,
    /// Position of the first row's token in its sequence.
    pub start: usize,
    /// The sequence's pages from its first token on.
    pub pages: &'a [u32],
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BatchError {
    #[error("rows of the batch do not follow each other: expected {expected}, got {got}")]
    Rows { expected: usize, got: usize },
    #[error("a sequence of {tokens} tokens has only {pages} pages")]
    TooFewPages { tokens: usize, pages: usize },
    #[error("page {0} does not exist")]
    NoSuchPage(u32),
    #[error("page {0} would be written by two sequences")]
    PageWrittenTwice(u32),
}

/// The rows of a forward pass, checked: every row belongs to one token, and no page is written by two sequences.
#[derive(Debug)]
pub struct Batch<'a> {
    sequences: Vec<SequenceRows<'a>>,
    rows: usize,
}

impl<'a> Batch<'a> {
    pub fn new(sequences: Vec<SequenceRows<'a>>, kv: &KvBuffer) -> Result<Self, BatchError> {
        let mut rows = 0;
        let mut written = Vec::new();
        for sequence in &sequences {
            if sequence.rows.start != rows || sequence.rows.is_empty() {
                return Err(BatchError::Rows { expected: rows, got: sequence.rows.start });
            }
            rows = sequence.rows.end;
            let tokens = sequence.start + sequence.rows.len();
            if sequence.pages.len() * PAGE_TOKENS < tokens {
                return Err(BatchError::TooFewPages { tokens, pages: sequence.pages.len() });
            }
            if let Some(page) = sequence.pages.iter().find(|page| **page as usize >= kv.pages()) {
                return Err(BatchError::NoSuchPage(*page));
            }
            written.extend(&sequence.pages[sequence.start / PAGE_TOKENS..tokens.div_ceil(PAGE_TOKENS)]);
        }
        written.sort_unstable();
        match written.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(BatchError::PageWrittenTwice(pair[0])),
            None => Ok(Self { sequences, rows }),
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn sequences(&self) -> &[SequenceRows<'a>] {
        &self.sequences
    }
}
