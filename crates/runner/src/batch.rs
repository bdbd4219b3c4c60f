//! The rows of one forward pass: which token each is, where its sequence's pages are, and which rows give logits.

use std::ops::Range;

use crate::{
    AdapterId, KeyFormat, KvShape, PAGE_TOKENS, PageFormat, PageLayers, PageLocation, RowsAdapter, RowsState,
    StateSlot, TokenChoice, TokenId,
};

/// Consecutive rows of a batch that are consecutive tokens of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceRows {
    pub rows: Range<usize>,
    /// Position of the first row's token in its sequence.
    pub start: usize,
    pub adapter: Option<RowsAdapter>,
    /// Whether these are rows of a prompt that may be computed in the device's fast way.
    pub is_fast: bool,
    /// Of models with recurrent layers.
    pub state: Option<RowsState>,
    /// For runners that choose tokens by themselves.
    pub choice: Option<TokenChoice>,
    /// Its page table, in the locations of the batch.
    pages: Range<usize>,
}

impl SequenceRows {
    /// Returns the sequence's length with these rows.
    pub fn tokens(&self) -> usize {
        self.start + self.rows.len()
    }

    /// Returns the position of a row's token.
    pub fn position(&self, row: usize) -> usize {
        self.start + row - self.rows.start
    }

    /// Returns the rows that its adapter applies to, if there are any.
    pub fn adapted_rows(&self) -> Option<(AdapterId, Range<usize>)> {
        let RowsAdapter { id, from } = self.adapter?;
        let first = self.rows.start + from.saturating_sub(self.start);
        (first < self.rows.end).then_some((id, first..self.rows.end))
    }

    /// Returns which of its pages the rows are written to.
    fn written(&self) -> Range<usize> {
        let first = self.pages.start;
        first + self.start / PAGE_TOKENS..first + self.tokens().div_ceil(PAGE_TOKENS)
    }
}

#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum BatchError {
    #[error("a sequence of {tokens} tokens has only {pages} pages")]
    TooFewPages { tokens: usize, pages: usize },
    #[error("a page at {offset} ends behind the page memory of {bytes} bytes")]
    OutOfBounds { offset: usize, bytes: usize },
    #[error("the page at {0} has no keys and values of layers with a window, and is within it")]
    PageWithoutWindow(usize),
    #[error("the page at {0} would be written by one sequence and used by another")]
    PageWrittenAndUsed(usize),
    #[error("the page at {offset} would be written, but its format {format} does not take single tokens")]
    PageNotAppendable { offset: usize, format: PageFormat },
    #[error("{rows} rows are more than the {rows_max} of a batch")]
    TooManyRows { rows: usize, rows_max: usize },
    #[error("{logit_rows} rows that give logits are more than the {logit_rows_max} of a batch")]
    TooManyLogitRows { logit_rows: usize, logit_rows_max: usize },
    #[error("a token is not in the vocabulary, or a position not in the context")]
    OutOfRange,
    #[error("the runner has no such adapter")]
    NoSuchAdapter,
    #[error("the runner has no fast way to compute rows")]
    NoFastRows,
    #[error("rows that must be exact follow others")]
    ExactRowsLast,
    #[error("a sequence has no recurrent state, or one in a slot that is not there")]
    NoState,
    #[error("{0} is used by two sequences")]
    StateShared(StateSlot),
    #[error("the rows begin at token {start}, and the state in {slot} is not that of the tokens before it")]
    StateElsewhere { slot: StateSlot, start: usize },
}

/// The rows of a forward pass. Built by the engine; [`Batch::check`] is for those who run it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    tokens: Vec<TokenId>,
    logit_rows: Vec<usize>,
    sequences: Vec<SequenceRows>,
    locations: Vec<PageLocation>,
}

impl Batch {
    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.logit_rows.clear();
        self.sequences.clear();
        self.locations.clear();
    }

    /// Appends the rows of a sequence: `tokens` from position `start` on, with the sequence's pages from its first token
    /// on. The last `logit_rows` of them give logits. Panics if there are fewer rows than that, or none.
    pub fn push(
        &mut self,
        start: usize,
        tokens: impl IntoIterator<Item = TokenId>,
        logit_rows: usize,
        pages: impl IntoIterator<Item = PageLocation>,
        adapter: Option<RowsAdapter>,
    ) {
        let (first_row, first_page) = (self.tokens.len(), self.locations.len());
        self.tokens.extend(tokens);
        self.locations.extend(pages);
        let rows = first_row..self.tokens.len();
        assert!(!rows.is_empty() && logit_rows <= rows.len(), "{logit_rows} logit rows of {}", rows.len());
        self.logit_rows.extend(rows.end - logit_rows..rows.end);
        let pages = first_page..self.locations.len();
        self.sequences.push(SequenceRows { rows, start, adapter, is_fast: false, state: None, choice: None, pages });
    }

    /// Lets the rows pushed last be computed in the device's fast way. Only such rows may follow.
    pub fn set_fast(&mut self) {
        self.sequences.last_mut().expect("rows were pushed").is_fast = true;
    }

    /// Sets the recurrent state that the rows pushed last go on from, of which the last `drafts` are of draft tokens. A
    /// sequence that begins with its first token needs no state before it: whatever is in the slot is overwritten.
    pub fn set_state(&mut self, slot: StateSlot, drafts: usize) {
        let last = self.sequences.last_mut().expect("rows were pushed");
        assert!(drafts < last.rows.len(), "{drafts} draft tokens of {} rows", last.rows.len());
        last.state = Some(RowsState { slot, drafts });
    }

    /// Sets how the token behind the rows pushed last is to be chosen, by a runner that does so.
    pub fn set_choice(&mut self, choice: TokenChoice) {
        self.sequences.last_mut().expect("rows were pushed").choice = Some(choice);
    }

    /// Makes other rows give logits than those that `push` named.
    pub fn set_logit_rows(&mut self, rows: impl IntoIterator<Item = usize>) {
        self.logit_rows.clear();
        self.logit_rows.extend(rows);
        assert!(self.logit_rows.iter().all(|row| *row < self.tokens.len()), "a logit row is not in the batch");
    }

    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Returns how many rows come before those that may be computed in the device's fast way.
    pub fn exact_rows(&self) -> usize {
        let first = self.sequences.iter().find(|sequence| sequence.is_fast);
        first.map_or(self.rows(), |sequence| sequence.rows.start)
    }

    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Whether any row has an adapter.
    pub fn has_adapters(&self) -> bool {
        self.sequences.iter().any(|sequence| sequence.adapted_rows().is_some())
    }

    /// Returns the rows whose logits are wanted.
    pub fn logit_rows(&self) -> &[usize] {
        &self.logit_rows
    }

    pub fn sequences(&self) -> &[SequenceRows] {
        &self.sequences
    }

    /// Returns the page table of one of its sequences.
    pub fn pages(&self, sequence: &SequenceRows) -> &[PageLocation] {
        &self.locations[sequence.pages.clone()]
    }

    /// Checks that the rows can be run on a page memory of `bytes` bytes: there are pages for all tokens, within the
    /// memory, and no byte of a page that is written belongs to another page of the batch.
    pub fn check(&self, shape: KvShape, bytes: usize) -> Result<CheckedBatch<'_>, BatchError> {
        let sizes = shape.page_sizes();
        let range = |page: &PageLocation| page.offset..page.offset + sizes[page.format.index()];
        for sequence in &self.sequences {
            let (tokens, pages) = (sequence.tokens(), self.pages(sequence).len());
            if pages * PAGE_TOKENS < tokens {
                return Err(BatchError::TooFewPages { tokens, pages });
            }
            let written = &self.locations[sequence.written()];
            if let Some(page) = written.iter().find(|page| !page.format.is_appendable()) {
                return Err(BatchError::PageNotAppendable { offset: page.offset, format: page.format });
            }
            let in_window = &self.pages(sequence)[shape.pages_behind_window(sequence.start).min(pages)..];
            if let Some(page) = in_window.iter().find(|page| page.format.layers == PageLayers::Global) {
                return Err(BatchError::PageWithoutWindow(page.offset));
            }
        }
        if let Some(page) = self.locations.iter().find(|page| range(page).end > bytes) {
            return Err(BatchError::OutOfBounds { offset: page.offset, bytes });
        }
        let exact = self.exact_rows();
        if self.sequences.iter().any(|sequence| sequence.rows.start >= exact && !sequence.is_fast) {
            return Err(BatchError::ExactRowsLast);
        }
        self.check_written(range)?;
        self.check_states()?;
        let has_integer_keys = self.locations.iter().any(|page| page.format.keys != KeyFormat::F16);
        Ok(CheckedBatch { batch: self, shape, bytes, has_integer_keys })
    }

    fn check_states(&self) -> Result<(), BatchError> {
        let states = self.sequences.iter().filter_map(|sequence| sequence.state);
        let mut slots: Vec<StateSlot> = states.map(|state| state.slot).collect();
        slots.sort_unstable();
        match slots.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(BatchError::StateShared(pair[0])),
            None => Ok(()),
        }
    }

    fn check_written(&self, range: impl Fn(&PageLocation) -> Range<usize>) -> Result<(), BatchError> {
        let indices = self.sequences.iter().flat_map(SequenceRows::written);
        let mut written: Vec<Range<usize>> = indices.map(|index| range(&self.locations[index])).collect();
        written.sort_unstable_by_key(|bytes| bytes.start);
        if let Some(pair) = written.windows(2).find(|pair| pair[0].end > pair[1].start) {
            return Err(BatchError::PageWrittenAndUsed(pair[1].start));
        }
        let overlaps = |bytes: &Range<usize>| {
            // The last one that begins before the end of `bytes`.
            let candidate = written.partition_point(|other| other.start < bytes.end).checked_sub(1);
            candidate.is_some_and(|index| written[index].end > bytes.start)
        };
        for sequence in &self.sequences {
            let read_only = sequence.pages.start..sequence.written().start;
            if let Some(page) = self.locations[read_only].iter().find(|page| overlaps(&range(page))) {
                return Err(BatchError::PageWrittenAndUsed(page.offset));
            }
        }
        Ok(())
    }
}

/// A batch that fits a page memory.
#[derive(Clone, Copy, Debug)]
pub struct CheckedBatch<'a> {
    batch: &'a Batch,
    shape: KvShape,
    bytes: usize,
    has_integer_keys: bool,
}

impl CheckedBatch<'_> {
    /// Whether any page has keys that are not floats.
    pub fn has_integer_keys(&self) -> bool {
        self.has_integer_keys
    }

    /// Returns for which pages and how many bytes of them it was checked.
    pub fn memory(&self) -> (KvShape, usize) {
        (self.shape, self.bytes)
    }
}

impl std::ops::Deref for CheckedBatch<'_> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ValueFormat;

    const SHAPE: KvShape = KvShape::new(1, 1, 16);
    const COLD: PageFormat = PageFormat::new(KeyFormat::Q4, ValueFormat::Q4);

    fn at(index: usize) -> PageLocation {
        PageLocation { offset: index * SHAPE.page_bytes(PageFormat::F16), format: PageFormat::F16 }
    }

    /// A batch of `(start, rows, pages)` on a memory of 8 pages.
    fn check(sequences: &[(usize, usize, &[PageLocation])]) -> Result<(), BatchError> {
        let mut batch = Batch::default();
        for (start, rows, pages) in sequences {
            batch.push(*start, (0..*rows as u32).collect::<Vec<_>>(), 1, pages.iter().copied(), None);
        }
        batch.check(SHAPE, 8 * SHAPE.page_bytes(PageFormat::F16)).map(|_| ())
    }

    #[test]
    fn sequences_may_share_what_nobody_writes() {
        assert_eq!(check(&[(16, 3, &[at(0), at(1)]), (16, 2, &[at(0), at(2)])]), Ok(()));
        let cold = PageLocation { format: COLD, ..at(0) };
        assert_eq!(check(&[(16, 3, &[cold, at(1)]), (16, 2, &[cold, at(2)])]), Ok(()));
    }

    #[test]
    fn a_written_page_belongs_to_one_sequence() {
        let taken = Err(BatchError::PageWrittenAndUsed(at(1).offset));
        assert_eq!(check(&[(16, 3, &[at(0), at(1)]), (16, 2, &[at(2), at(1)])]), taken);
        assert_eq!(check(&[(16, 3, &[at(0), at(1)]), (32, 2, &[at(2), at(1), at(3)])]), taken);
        assert_eq!(check(&[(16, 3, &[at(1), at(1)])]), taken);
        let within = PageLocation { offset: at(1).offset + 64, format: COLD };
        let overlap = Err(BatchError::PageWrittenAndUsed(within.offset));
        assert_eq!(check(&[(16, 3, &[at(0), at(1)]), (16, 2, &[within, at(3)])]), overlap);
    }

    #[test]
    fn pages_must_be_enough_within_memory_and_appendable_where_written() {
        assert_eq!(check(&[(16, 17, &[at(0), at(1)])]), Err(BatchError::TooFewPages { tokens: 33, pages: 2 }));
        let bytes = at(8).offset;
        assert_eq!(check(&[(16, 3, &[at(8), at(1)])]), Err(BatchError::OutOfBounds { offset: bytes, bytes }));
        let cold = PageLocation { format: COLD, ..at(1) };
        let refused = Err(BatchError::PageNotAppendable { offset: cold.offset, format: COLD });
        assert_eq!(check(&[(16, 3, &[at(0), cold])]), refused);
    }
}
