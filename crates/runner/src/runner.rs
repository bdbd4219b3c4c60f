//! What the engine asks of a device.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::{
    AdapterId, Batch, BatchError, Candidate, KvShape, NotFinite, PageLocation, PassTimes, Rotation, StateSlot, TokenId,
};

/// The memory that pages live in: one range of bytes, addressed by offset. What is in it is decided elsewhere. Beside it,
/// slots for recurrent states, of models that have them.
///
/// Nothing here fails: a device that is lost says so when a batch is waited for.
pub trait PageBytes {
    /// Returns the bytes in a range.
    fn read(&mut self, range: Range<usize>) -> Cow<'_, [u8]>;

    /// Overwrites the bytes from `offset` on.
    fn write(&mut self, offset: usize, bytes: &[u8]);

    /// Copies a range to `to`. The two may overlap only if they are the same.
    fn copy(&mut self, from: Range<usize>, to: usize);

    /// Rewrites pages in other formats, at other locations. All of their tokens have been written, no location overlaps
    /// another, and each `from` can become its `to` ([`crate::PageFormat::can_become`]).
    fn convert(&mut self, conversions: &[Conversion]);

    /// Lets the system have the memory of a range back, whose contents are not needed any more.
    fn discard(&mut self, range: Range<usize>);

    /// Copies the state in a slot to another, as it is behind the first `tokens` tokens of its sequence: those that were
    /// certain when they were computed, or up to as many draft tokens more.
    fn copy_state(&mut self, from: StateSlot, to: StateSlot, tokens: usize);

    /// Returns the bytes of a state behind `tokens` tokens, for [`PageBytes::write_state`].
    fn read_state(&mut self, slot: StateSlot, tokens: usize) -> Cow<'_, [u8]>;

    /// Overwrites a state by one behind `tokens` tokens. Returns whether the bytes are as many as a state has.
    fn write_state(&mut self, slot: StateSlot, tokens: usize, bytes: &[u8]) -> bool;

    /// Lets the system have the memory of a slot back.
    fn discard_state(&mut self, slot: StateSlot);
}

/// A page on its way to another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    pub from: PageLocation,
    pub to: PageLocation,
}

/// A model on a device. The engine submits one batch at a time and waits for it before it submits the next or touches
/// the pages that the batch writes.
pub trait Runner: PageBytes + Send + fmt::Debug {
    fn limits(&self) -> &RunnerLimits;

    /// Allocates the page memory, once, before any batch.
    fn reserve_pages(&mut self, bytes: usize, rotation: Rotation);

    /// Allocates the slots of recurrent states, once, before any batch.
    fn reserve_states(&mut self, slots: usize);

    /// Changes the basis in which keys and values are stored. No page may be in use.
    fn set_rotation(&mut self, rotation: Rotation);

    /// Starts to run a batch: appends the keys and values of its rows to their pages and computes the logits of its
    /// logit rows. May return before that is done.
    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError>;

    /// Blocks until the submitted batch has run. After an error, the pages that it writes may hold anything.
    fn wait(&mut self) -> Result<(), RunnerError>;

    /// Returns the logits of the `i`-th logit row of the last batch, for the caller to change as it likes.
    fn logits(&mut self, i: usize) -> &mut [f32];

    /// Finds the `count` likeliest tokens of the `i`-th logit row, the likeliest first, ties by token. Where that is all that
    /// is needed, a device need not copy its logits.
    fn candidates(&mut self, i: usize, count: usize, out: &mut Vec<Candidate>) -> Result<(), NotFinite>;

    /// Returns the token that the runner chose behind the `i`-th logit row of the last batch, if it chooses by itself
    /// ([`RunnerLimits::chooses_tokens`]); or why there is none, which concerns this sequence only.
    fn chosen(&mut self, i: usize) -> Result<TokenId, RunnerError> {
        let _ = i;
        Err(RunnerError::StepFailed("this device gives logits, and chooses no tokens".to_owned()))
    }

    /// Refuses a prompt that the device would read otherwise than these tokens.
    fn check_prompt(&self, tokens: &[TokenId]) -> Result<(), String> {
        let _ = tokens;
        Ok(())
    }

    /// Writes the state of a row behind all layers, normalized as the output matrix is given it.
    fn hidden_state(&mut self, row: usize, out: &mut [f32]);

    /// Whether rows with this adapter can be run.
    fn has_adapter(&self, adapter: AdapterId) -> bool;

    /// Lets other engines have the device until the next batch.
    fn yield_device(&mut self);

    /// Returns for how long batches waited for other engines since the last call.
    fn take_device_wait(&mut self) -> Duration;

    /// Returns for how long batches ran since the last call, waiting for other engines included; zero if it has no clock.
    fn take_run_time(&mut self) -> Duration;

    /// Returns where the time of batches went since the last call; zeros if the device does not tell.
    fn take_pass_times(&mut self) -> PassTimes;
}

/// What a runner can do, and what the engine needs to know of its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Tokens of the vocabulary, which is the length of logits.
    pub vocabulary: usize,
    /// Maximum tokens of a sequence.
    pub context: usize,
    /// Elements of a hidden state; 0 if the runner does not give any.
    pub hidden: usize,
    pub kv_shape: KvShape,
    /// Bytes of a recurrent state; 0 for models whose layers keep nothing but keys and values.
    pub state_bytes: usize,
    /// Maximum draft tokens of a sequence in a batch.
    pub drafts_max: usize,
    /// Maximum rows of a batch, and of those that give logits.
    pub rows_max: usize,
    pub logit_rows_max: usize,
    /// Whether pages and states can be shared, copied and read. Otherwise a sequence's keys and values are in its slot, pages
    /// only count what they take, and every sequence begins with its first token.
    pub caches_prefixes: bool,
    /// Whether the runner chooses tokens by itself, as [`SequenceRows::choice`](crate::SequenceRows::choice) says, and gives no
    /// logits.
    pub chooses_tokens: bool,
    /// Whether there is a faster way for rows of prompts, which rounds otherwise ([`Batch::set_fast`]).
    pub has_fast_rows: bool,
    /// Tells apart runners whose keys and values must not be mixed, on disk too. Empty for the CPU, whose kernel sets
    /// agree closely enough.
    pub numerics: String,
}

impl RunnerLimits {
    /// Refuses a batch that is beyond them. The engine checks requests, so none of this is expected.
    pub fn check(&self, batch: &Batch) -> Result<(), BatchError> {
        if batch.rows() > self.rows_max {
            return Err(BatchError::TooManyRows { rows: batch.rows(), rows_max: self.rows_max });
        }
        let (logit_rows, logit_rows_max) = (batch.logit_rows().len(), self.logit_rows_max);
        if logit_rows > logit_rows_max {
            return Err(BatchError::TooManyLogitRows { logit_rows, logit_rows_max });
        }
        let is_in_context = batch.sequences().iter().all(|sequence| sequence.tokens() <= self.context);
        let is_in_vocabulary = batch.tokens().iter().all(|token| (*token as usize) < self.vocabulary);
        if is_in_context && is_in_vocabulary { Ok(()) } else { Err(BatchError::OutOfRange) }
    }
}

#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum RunnerError {
    #[error("the batch cannot be run: {0}")]
    Batch(#[from] BatchError),
    /// The next batch may succeed.
    #[error("the device failed to run a batch: {0}")]
    StepFailed(String),
    #[error("the device is lost: {0}")]
    DeviceLost(String),
}
