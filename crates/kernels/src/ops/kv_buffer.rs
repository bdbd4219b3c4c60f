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

    /// Elements of the keys and values of one head in one layer of a page.
    pub(crate) fn cell_len(&self) -> usize {
        2 * self.head_len()
    }
}

/// Half-float keys and values: `[layers, kv_heads, pages, keys and values, head_len]`, so that the pages of a sequence,
/// mostly neighbours, are one stream for attention. Memory is taken when a page is first written.
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
        Self { data: Shared::zeroed(pool, shape.layers * shape.kv_heads * pages * shape.cell_len()), shape, pages }
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Where the keys of `head` in `layer` of page 0 start; those of page `p` are `p * cell_len` further.
    pub(crate) fn keys_at(&self, layer: usize, head: usize) -> usize {
        assert!(layer < self.shape.layers && head < self.shape.kv_heads);
        (layer * self.shape.kv_heads + head) * self.pages * self.shape.cell_len()
    }

    pub(crate) fn values_at(&self, layer: usize, head: usize) -> usize {
        self.keys_at(layer, head) + self.shape.head_len()
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

impl SequenceRows<'_> {
    /// The sequence's length with these rows.
    pub(crate) fn tokens(&self) -> usize {
        self.start + self.rows.len()
    }

    /// Position of the token of a row.
    pub(crate) fn position(&self, row: usize) -> usize {
        self.start + row - self.rows.start
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BatchError {
    #[error("rows of the batch do not follow each other: expected {expected}, got {got}")]
    Rows { expected: usize, got: usize },
    #[error("a sequence of {tokens} tokens has only {pages} pages")]
    TooFewPages { tokens: usize, pages: usize },
    #[error("page {0} does not exist")]
    NoSuchPage(u32),
    #[error("page {0} would be written by one sequence and used by another")]
    PageWrittenAndUsed(u32),
}

/// The rows of a forward pass, checked: every row belongs to one token, and a page that is written belongs to one
/// sequence alone.
#[derive(Debug)]
pub struct Batch<'a> {
    sequences: Vec<SequenceRows<'a>>,
    rows: usize,
}

impl<'a> Batch<'a> {
    pub fn new(sequences: Vec<SequenceRows<'a>>, kv: &KvBuffer) -> Result<Self, BatchError> {
        let mut rows = 0;
        for sequence in &sequences {
            if sequence.rows.start != rows || sequence.rows.is_empty() {
                return Err(BatchError::Rows { expected: rows, got: sequence.rows.start });
            }
            rows = sequence.rows.end;
            let tokens = sequence.tokens();
            if sequence.pages.len() * PAGE_TOKENS < tokens {
                return Err(BatchError::TooFewPages { tokens, pages: sequence.pages.len() });
            }
            if let Some(page) = sequence.pages.iter().find(|page| **page as usize >= kv.pages()) {
                return Err(BatchError::NoSuchPage(*page));
            }
        }
        check_written(&sequences)?;
        Ok(Self { sequences, rows })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn sequences(&self) -> &[SequenceRows<'a>] {
        &self.sequences
    }
}

/// Each page that is written must occur only once among the pages of all sequences that are read or written.
fn check_written(sequences: &[SequenceRows<'_>]) -> Result<(), BatchError> {
    let used = |sequence: &SequenceRows<'_>| sequence.tokens().div_ceil(PAGE_TOKENS);
    let mut written: Vec<u32> = sequences
        .iter()
        .flat_map(|sequence| &sequence.pages[sequence.start / PAGE_TOKENS..used(sequence)])
        .copied()
        .collect();
    written.sort_unstable();
    let twice = written.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    let only_read = sequences.iter().flat_map(|sequence| &sequence.pages[..sequence.start / PAGE_TOKENS]);
    let read = || only_read.copied().find(|page| written.binary_search(page).is_ok());
    twice.or_else(read).map_or(Ok(()), |page| Err(BatchError::PageWrittenAndUsed(page)))
}
