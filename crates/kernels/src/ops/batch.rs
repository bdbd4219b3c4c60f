//! Which rows of a batch belong to which tokens of which pages.

use std::fmt;
use std::ops::Range;

use super::{KvMemory, PAGE_TOKENS};

/// A page of a `KvMemory` for as long as it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// Consecutive rows of a batch that are consecutive tokens of one sequence.
#[derive(Clone, Debug)]
pub struct SequenceRows<'a> {
    pub rows: Range<usize>,
    /// Position of the first row's token in its sequence.
    pub start: usize,
    /// The sequence's pages from its first token on.
    pub pages: &'a [PageId],
}

impl<'a> SequenceRows<'a> {
    /// The sequence's length with these rows.
    pub(crate) fn tokens(&self) -> usize {
        self.start + self.rows.len()
    }

    /// Position of the token of a row.
    pub(crate) fn position(&self, row: usize) -> usize {
        self.start + row - self.rows.start
    }

    /// Pages that the rows are written to.
    fn written(&self) -> &'a [PageId] {
        &self.pages[self.start / PAGE_TOKENS..self.tokens().div_ceil(PAGE_TOKENS)]
    }

    /// Pages before them.
    fn only_read(&self) -> &'a [PageId] {
        &self.pages[..self.start / PAGE_TOKENS]
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BatchError {
    #[error("rows of the batch do not follow each other: expected {expected}, got {got}")]
    Rows { expected: usize, got: usize },
    #[error("a sequence of {tokens} tokens has only {pages} pages")]
    TooFewPages { tokens: usize, pages: usize },
    #[error("{0} does not exist")]
    NoSuchPage(PageId),
    #[error("{0} would be written by one sequence and used by another")]
    PageWrittenAndUsed(PageId),
    #[error("{0} would be written, but its format does not take single tokens")]
    PageNotAppendable(PageId),
}

/// The rows of a forward pass, checked: every row belongs to one token, and a page that is written belongs to one
/// sequence alone.
#[derive(Debug)]
pub struct Batch<'a> {
    sequences: Vec<SequenceRows<'a>>,
    rows: usize,
}

impl<'a> Batch<'a> {
    pub fn new(sequences: Vec<SequenceRows<'a>>, kv: &KvMemory) -> Result<Self, BatchError> {
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
            if let Some(page) = sequence.pages.iter().find(|page| kv.find(**page).is_none()) {
                return Err(BatchError::NoSuchPage(*page));
            }
            if let Some(page) = sequence.written().iter().find(|page| !kv.format(**page).is_appendable()) {
                return Err(BatchError::PageNotAppendable(*page));
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
    let mut written: Vec<PageId> = sequences.iter().flat_map(SequenceRows::written).copied().collect();
    written.sort_unstable();
    let twice = written.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    let only_read = sequences.iter().flat_map(SequenceRows::only_read);
    let read = || only_read.copied().find(|page| written.binary_search(page).is_ok());
    twice.or_else(read).map_or(Ok(()), |page| Err(BatchError::PageWrittenAndUsed(page)))
}
