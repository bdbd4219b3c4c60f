//! A tiny deterministic runner without a model, thousands of times faster than one: for simulations of the engine and
//! tests of what holds pages. Its logits depend on every token before a row *as found in the pages*, so that a page that
//! is shared, copied, moved or restored wrongly shows.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::{
    AdapterId, Batch, BatchError, Candidate, CandidateScan, Conversion, KvShape, NotFinite, PAGE_TOKENS, PageBytes,
    PageFormat, PageLayers, PageLocation, PassTimes, Rotation, RowsAdapter, RowsState, Runner, RunnerError,
    RunnerLimits, SequenceRows, StateSlot, TokenId,
};

/// Bytes that a token takes in a page, whatever its format: the hash of all tokens up to it, and the token.
const CELL: usize = 12;
/// Bytes of a saved state.
const STATE_BYTES: usize = 8;
/// The hash before the first token, without an adapter.
const FIRST: u64 = 0x243f_6a88_85a3_08d3;

/// What pages hold after a failure.
const GARBAGE: u8 = 0xee;

/// What goes wrong with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// The batch fails; the pages that it writes hold garbage.
    StepFails = 1,
    /// All logits of the batch are NaN.
    NanLogits = 2,
    /// This batch and all after it fail; all pages hold garbage.
    DeviceLost = 3,
}

/// Injects faults into a runner that somebody else owns by now.
#[derive(Clone, Debug, Default)]
pub struct FaultInjector(Arc<AtomicU8>);

impl FaultInjector {
    /// Makes the next batch go wrong.
    pub fn inject(&self, fault: Fault) {
        self.0.store(fault as u8, Ordering::Relaxed);
    }

    fn take(&self) -> Option<Fault> {
        match self.0.swap(0, Ordering::Relaxed) {
            1 => Some(Fault::StepFails),
            2 => Some(Fault::NanLogits),
            3 => Some(Fault::DeviceLost),
            _ => None,
        }
    }
}

/// The recurrent state of a sequence: the hash of its tokens.
#[derive(Clone, Debug, Default)]
struct FakeState {
    tokens: usize,
    hash: u64,
    /// Behind each draft token.
    drafts: Vec<u64>,
}

impl FakeState {
    /// Returns the hash of the first `tokens` tokens, if it is known.
    fn at(&self, tokens: usize) -> Option<u64> {
        match tokens.checked_sub(self.tokens)? {
            0 => Some(self.hash),
            drafts => self.drafts.get(drafts - 1).copied(),
        }
    }
}

/// A runner that computes hashes.
#[derive(Debug)]
pub struct FakeRunner {
    limits: RunnerLimits,
    /// Bytes of pages, by `PageFormat::index`.
    page_sizes: [usize; PageFormat::COUNT],
    memory: Vec<u8>,
    states: Vec<FakeState>,
    faults: FaultInjector,
    is_lost: bool,
    pending: Batch,
    /// `[rows]`
    hashes: Vec<u64>,
    /// `[logit rows, vocabulary]`
    logits: Vec<f32>,
    scan: CandidateScan,
}

impl FakeRunner {
    /// A runner for sequences of up to `context` tokens of a `vocabulary`. Panics if a page of the shape's smallest format
    /// does not hold what it keeps of 16 tokens.
    pub fn new(kv_shape: KvShape, vocabulary: usize, context: usize, rows_max: usize) -> Self {
        let smallest = kv_shape.page_sizes().into_iter().min().unwrap_or(0);
        assert!(smallest >= PAGE_TOKENS * CELL, "pages of {smallest} bytes are too small");
        let limits = RunnerLimits {
            vocabulary,
            context,
            hidden: 8,
            kv_shape,
            state_bytes: 0,
            drafts_max: usize::MAX,
            rows_max,
            logit_rows_max: rows_max,
            caches_prefixes: true,
            chooses_tokens: false,
            has_fast_rows: false,
            numerics: "fake".to_owned(),
        };
        Self {
            limits,
            page_sizes: kv_shape.page_sizes(),
            memory: Vec::new(),
            states: Vec::new(),
            faults: FaultInjector::default(),
            is_lost: false,
            pending: Batch::default(),
            hashes: Vec::new(),
            logits: Vec::new(),
            scan: CandidateScan::default(),
        }
    }

    /// Makes it a model with recurrent states, which take up to `drafts_max` draft tokens back.
    pub fn with_states(mut self, drafts_max: usize) -> Self {
        (self.limits.state_bytes, self.limits.drafts_max) = (STATE_BYTES, drafts_max);
        self
    }

    /// Makes it keep everything of a sequence in its slot: what would share, copy or read that panics.
    pub fn without_prefixes(mut self) -> Self {
        self.limits.caches_prefixes = false;
        self.with_states(0)
    }

    /// Makes it choose tokens by itself, the likeliest always, and keep everything of a sequence in its slot.
    pub fn choosing_tokens(mut self) -> Self {
        self.limits.chooses_tokens = true;
        self.without_prefixes()
    }

    /// Panics if what is in pages and states cannot be had.
    fn check_caches_prefixes(&self) {
        assert!(self.limits.caches_prefixes, "nothing of a sequence can be shared, copied or read");
    }

    pub fn faults(&self) -> FaultInjector {
        self.faults.clone()
    }

    /// Returns the hash of all tokens up to a position.
    fn hash_at(&self, pages: &[PageLocation], position: usize) -> u64 {
        let cell = &self.memory[offset(pages, position)..][..8];
        u64::from_le_bytes(cell.try_into().expect("eight bytes"))
    }

    fn token_at(&self, pages: &[PageLocation], position: usize) -> TokenId {
        let cell = &self.memory[offset(pages, position) + 8..][..4];
        u32::from_le_bytes(cell.try_into().expect("four bytes"))
    }

    /// Returns the hash of all tokens before a position.
    fn hash_before(&self, sequence: &SequenceRows, pages: &[PageLocation], position: usize) -> u64 {
        let before = if position == 0 { FIRST } else { self.hash_at(pages, position - 1) };
        adapted(sequence, position, before)
    }

    fn state(&self, slot: StateSlot) -> &FakeState {
        &self.states[slot.0 as usize]
    }

    /// Where layers with a window keep what they do of the tokens of a page, if there are such layers.
    fn windowed_part(&self, page: PageLocation) -> Option<usize> {
        let has_windows = self.limits.kv_shape.windowed_layers > 0;
        has_windows.then(|| page.offset + self.page_sizes[page.format.trimmed().index()])
    }

    /// Where they keep a token.
    fn windowed_offset(&self, pages: &[PageLocation], position: usize) -> Option<usize> {
        let part = self.windowed_part(pages[position / PAGE_TOKENS])?;
        Some(part + position % PAGE_TOKENS * size_of::<u64>())
    }

    /// Panics unless each page before the rows goes on where the page before it ends.
    fn check_pages(&self, sequence: &SequenceRows, pages: &[PageLocation]) {
        let in_window = self.limits.kv_shape.pages_behind_window(sequence.start) * PAGE_TOKENS;
        for position in in_window..sequence.start {
            let Some(at) = self.windowed_offset(pages, position) else { break };
            let hash = u64::from_le_bytes(self.memory[at..][..8].try_into().expect("eight bytes"));
            assert_eq!(hash, self.hash_at(pages, position), "token {position} is in a window and not there");
        }
        for first in (0..sequence.start).step_by(PAGE_TOKENS) {
            let before = self.hash_before(sequence, pages, first);
            let hash = mix(before, u64::from(self.token_at(pages, first)));
            assert_eq!(self.hash_at(pages, first), hash, "the page of token {first} is not of this sequence");
        }
    }

    fn run(&mut self, batch: &Batch) {
        self.hashes.clear();
        self.logits.clear();
        for sequence in batch.sequences() {
            let pages = batch.pages(sequence);
            self.check_pages(sequence, pages);
            let mut hash = self.hash_before(sequence, pages, sequence.start);
            if let Some(state) = sequence.state.filter(|_| sequence.start > 0) {
                let found = self.state(state.slot).at(sequence.start);
                let found = found.map(|hash| adapted(sequence, sequence.start, hash));
                assert_eq!(found, Some(hash), "{} is not of the tokens before {}", state.slot, sequence.start);
            }
            if let Some(state) = sequence.state.filter(|_| sequence.start == 0 && !self.limits.caches_prefixes) {
                assert_eq!(self.state(state.slot).tokens, 0, "{} holds another sequence", state.slot);
            }
            let first_row = self.hashes.len();
            for row in sequence.rows.clone() {
                let token = batch.tokens()[row];
                if row > sequence.rows.start {
                    hash = adapted(sequence, sequence.position(row), hash);
                }
                hash = mix(hash, u64::from(token));
                let at = offset(pages, sequence.position(row));
                self.memory[at..][..8].copy_from_slice(&hash.to_le_bytes());
                self.memory[at + 8..][..4].copy_from_slice(&token.to_le_bytes());
                if let Some(at) = self.windowed_offset(pages, sequence.position(row)) {
                    self.memory[at..][..8].copy_from_slice(&hash.to_le_bytes());
                }
                self.hashes.push(hash);
            }
            if let Some(RowsState { slot, drafts }) = sequence.state {
                let (known, drafted) = self.hashes[first_row..].split_at(sequence.rows.len() - drafts);
                let hash = *known.last().expect("fewer draft tokens than rows");
                self.states[slot.0 as usize] =
                    FakeState { tokens: sequence.start + known.len(), hash, drafts: drafted.to_vec() };
            }
        }
        for row in batch.logit_rows() {
            self.push_logits(self.hashes[*row], batch.tokens()[*row]);
        }
    }

    /// Leaves garbage in every page that a batch writes.
    fn spoil(&mut self, batch: &Batch) {
        for sequence in batch.sequences() {
            let written = sequence.start / PAGE_TOKENS..sequence.tokens().div_ceil(PAGE_TOKENS);
            for page in &batch.pages(sequence)[written] {
                self.memory[page.offset..][..PAGE_TOKENS * CELL].fill(GARBAGE);
            }
            if let Some(state) = sequence.state {
                self.states[state.slot.0 as usize] = FakeState::default();
            }
        }
    }

    /// Mostly the last token decides what comes next, so that texts repeat themselves and are worth guessing; where it is
    /// undecided, all tokens before it do.
    fn push_logits(&mut self, hash: u64, token: TokenId) {
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 24) as f32;
        let (by_token, by_text) = (mix(FIRST, u64::from(token)), hash);
        for next in 0..self.limits.vocabulary as u64 {
            self.logits.push(unit(mix(by_token, next)) + 0.05 * unit(mix(by_text, next)));
        }
    }
}

/// The hash before a position, changed where the adapter of the sequence begins.
fn adapted(sequence: &SequenceRows, position: usize, before: u64) -> u64 {
    match sequence.adapter {
        Some(RowsAdapter { id: AdapterId(digest), from }) if from == position => {
            mix(before, u64::from_le_bytes(*digest.first_chunk().expect("32 bytes")))
        }
        _ => before,
    }
}

/// Where a token is in memory.
fn offset(pages: &[PageLocation], position: usize) -> usize {
    pages[position / PAGE_TOKENS].offset + position % PAGE_TOKENS * CELL
}

/// A hash of two numbers that differs wherever they do.
fn mix(a: u64, b: u64) -> u64 {
    let mut x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 29;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 32
}

impl PageBytes for FakeRunner {
    fn read(&mut self, range: Range<usize>) -> Cow<'_, [u8]> {
        self.check_caches_prefixes();
        Cow::Borrowed(&self.memory[range])
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.check_caches_prefixes();
        self.memory[offset..][..bytes.len()].copy_from_slice(bytes);
    }

    fn copy(&mut self, from: Range<usize>, to: usize) {
        self.memory.copy_within(from, to);
    }

    fn convert(&mut self, conversions: &[Conversion]) {
        self.check_caches_prefixes();
        for Conversion { from, to } in conversions {
            self.memory.copy_within(from.offset..from.offset + PAGE_TOKENS * CELL, to.offset);
            let windowed = [from, to].map(|page| self.windowed_part(*page));
            if let [Some(from), Some(to_part)] = windowed
                && to.format.layers == PageLayers::All
            {
                self.memory.copy_within(from..from + PAGE_TOKENS * size_of::<u64>(), to_part);
            }
        }
    }

    fn discard(&mut self, range: Range<usize>) {
        self.memory[range].fill(0);
    }

    fn copy_state(&mut self, from: StateSlot, to: StateSlot, tokens: usize) {
        self.check_caches_prefixes();
        let hash = self.state(from).at(tokens).expect("a state behind these tokens");
        self.states[to.0 as usize] = FakeState { tokens, hash, drafts: Vec::new() };
    }

    fn read_state(&mut self, slot: StateSlot, tokens: usize) -> Cow<'_, [u8]> {
        self.check_caches_prefixes();
        let hash = self.state(slot).at(tokens).expect("a state behind these tokens");
        Cow::Owned(hash.to_le_bytes().to_vec())
    }

    fn write_state(&mut self, slot: StateSlot, tokens: usize, bytes: &[u8]) -> bool {
        let Ok(bytes) = bytes.try_into() else { return false };
        self.states[slot.0 as usize] = FakeState { tokens, hash: u64::from_le_bytes(bytes), drafts: Vec::new() };
        true
    }

    fn discard_state(&mut self, slot: StateSlot) {
        self.states[slot.0 as usize] = FakeState::default();
    }
}

impl Runner for FakeRunner {
    fn limits(&self) -> &RunnerLimits {
        &self.limits
    }

    fn reserve_pages(&mut self, bytes: usize, _: Rotation) {
        self.memory = vec![0; bytes];
    }

    fn reserve_states(&mut self, slots: usize) {
        self.states = vec![FakeState::default(); slots];
    }

    fn set_rotation(&mut self, _: Rotation) {}

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        batch.check(self.limits.kv_shape, self.memory.len())?;
        for sequence in batch.sequences().iter().filter(|_| self.limits.state_bytes > 0) {
            let state = sequence.state.filter(|state| self.states.get(state.slot.0 as usize).is_some());
            let RowsState { drafts, .. } = state.ok_or(BatchError::NoState)?;
            assert!(drafts <= self.limits.drafts_max, "{drafts} draft tokens");
        }
        self.pending.clone_from(batch);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), RunnerError> {
        let batch = std::mem::take(&mut self.pending);
        let fault = self.faults.take();
        self.is_lost |= fault == Some(Fault::DeviceLost);
        let fails = self.is_lost || fault == Some(Fault::StepFails);
        if fails {
            self.spoil(&batch);
        } else {
            self.run(&batch);
        }
        self.pending = batch;
        if self.is_lost {
            self.memory.fill(GARBAGE);
            return Err(RunnerError::DeviceLost("injected".to_owned()));
        }
        match fault {
            Some(Fault::StepFails) => return Err(RunnerError::StepFailed("injected".to_owned())),
            Some(Fault::NanLogits) => self.logits.fill(f32::NAN),
            _ => {}
        }
        Ok(())
    }

    fn chosen(&mut self, i: usize) -> Result<TokenId, RunnerError> {
        let logits = &self.logits[i * self.limits.vocabulary..][..self.limits.vocabulary];
        let mut likeliest = Vec::new();
        let found = self.scan.find(logits, 1, &mut likeliest);
        found.map(|()| likeliest[0].0).map_err(|NotFinite| RunnerError::StepFailed("injected".to_owned()))
    }

    fn logits(&mut self, i: usize) -> &mut [f32] {
        assert!(!self.limits.chooses_tokens, "it gives no logits");
        let len = self.limits.vocabulary;
        &mut self.logits[i * len..][..len]
    }

    fn candidates(&mut self, i: usize, count: usize, out: &mut Vec<Candidate>) -> Result<(), NotFinite> {
        assert!(!self.limits.chooses_tokens, "it gives no logits");
        self.scan.find(&self.logits[i * self.limits.vocabulary..][..self.limits.vocabulary], count, out)
    }

    fn hidden_state(&mut self, row: usize, out: &mut [f32]) {
        let hash = self.hashes[row];
        out.iter_mut().enumerate().for_each(|(i, out)| *out = (mix(hash, i as u64) >> 40) as f32);
    }

    fn has_adapter(&self, _: AdapterId) -> bool {
        true
    }

    fn yield_device(&mut self) {}

    fn take_device_wait(&mut self) -> Duration {
        Duration::ZERO
    }

    fn take_run_time(&mut self) -> Duration {
        Duration::ZERO
    }

    fn take_pass_times(&mut self) -> PassTimes {
        PassTimes::default()
    }
}
