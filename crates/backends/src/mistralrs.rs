//! Generating models on mistral.rs, which runs as a process of its own and chooses tokens by itself: a [`Runner`] whose slots are
//! open streams of its completions.
//!
//! Prompts are rendered and encoded here and sent as text; what comes back is spelled with the tokens of the model's vocabulary.
//! So queue, limits, stop strings, tool calls, reasoning and log are the engine's, as with any other runner. There are no logits:
//! [`RunnerLimits`] says so, and the engine refuses what needs some.

mod backend;
mod log;
mod process;
mod spelling;
mod stream;
mod supervisor;
mod wire;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use ruvllm_runner::{
    AdapterId, Batch, BatchError, Candidate, Conversion, NotFinite, PageBytes, PassTimes, Rotation, RowsState, Runner,
    RunnerError, RunnerLimits, SequenceRows, StateSlot, TokenChoice, TokenId,
};

pub use backend::MistralRs;
use spelling::Spelling;
use stream::AnswerStream;
use supervisor::Supervisor;
use wire::{Chunk, End};

/// Interval at which the process is looked after while a token is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Maximum time without any token: even a long prompt has its first by then.
const SILENCE_MAX: Duration = Duration::from_secs(900);

/// A sequence in its slot.
#[derive(Debug, Default)]
struct Sequence {
    tokens: Vec<TokenId>,
    /// `None` until all of its prompt has come.
    stream: Option<AnswerStream>,
    /// Tokens that have come and were not asked for yet.
    ready: VecDeque<TokenId>,
    end: Option<End>,
}

/// A model on mistral.rs.
#[derive(Debug)]
struct MistralRsRunner {
    supervisor: Supervisor,
    spelling: Arc<Spelling>,
    limits: RunnerLimits,
    slots: Vec<Option<Sequence>>,
    /// Bytes of the pages that count what sequences take. There is nothing in them.
    page_bytes: usize,
    /// The slot of each logit row of the batch that was submitted, and why nothing could be asked for it.
    asked: Vec<(usize, Result<(), String>)>,
    /// What came for each.
    chosen: Vec<Result<TokenId, String>>,
    run_time: Duration,
}

impl MistralRsRunner {
    fn new(supervisor: Supervisor, spelling: Arc<Spelling>, limits: RunnerLimits) -> Self {
        Self {
            supervisor,
            spelling,
            limits,
            slots: Vec::new(),
            page_bytes: 0,
            asked: Vec::new(),
            chosen: Vec::new(),
            run_time: Duration::ZERO,
        }
    }

    /// Returns the slot of a sequence, if that holds the tokens before its rows.
    fn slot(&self, sequence: &SequenceRows) -> Result<usize, BatchError> {
        let RowsState { slot, .. } = sequence.state.ok_or(BatchError::NoState)?;
        let held = self.slots.get(slot.0 as usize).ok_or(BatchError::NoState)?;
        let tokens = held.as_ref().map(|held| held.tokens.len());
        if sequence.start == 0 || tokens == Some(sequence.start) {
            Ok(slot.0 as usize)
        } else {
            Err(BatchError::StateElsewhere { slot, start: sequence.start })
        }
    }

    fn check(&self, batch: &Batch) -> Result<(), BatchError> {
        self.limits.check(batch)?;
        if batch.sequences().iter().any(|sequence| sequence.adapter.is_some()) {
            return Err(BatchError::NoSuchAdapter);
        }
        batch.check(self.limits.kv_shape, self.page_bytes)?;
        batch.sequences().iter().try_for_each(|sequence| self.slot(sequence).map(drop))
    }

    /// Takes the rows of a sequence, and asks for its answer when its last token is there.
    fn take_rows(&mut self, batch: &Batch, sequence: &SequenceRows) -> Result<(), RunnerError> {
        let slot = self.slot(sequence)?;
        let held = self.slots[slot].take().filter(|_| sequence.start > 0);
        let mut held = held.unwrap_or_default();
        held.tokens.extend(&batch.tokens()[sequence.rows.clone()]);
        if batch.logit_rows().iter().any(|row| sequence.rows.contains(row)) {
            // What is wrong with one sequence concerns no other.
            let asked = if held.stream.is_none() { self.ask(&mut held, sequence.choice) } else { Ok(()) };
            self.asked.push((slot, asked));
        }
        self.slots[slot] = Some(held);
        Ok(())
    }

    /// Opens the stream of a sequence.
    fn ask(&mut self, held: &mut Sequence, choice: Option<TokenChoice>) -> Result<(), String> {
        let choice = choice.ok_or("the batch says nothing of how to choose tokens")?;
        // One that goes on after a pause has an answer, too, which nobody has checked yet.
        self.check_prompt(&held.tokens)?;
        let url = self.supervisor.running()?;
        // One more than there is room for: the engine ends answers at the length that it knows.
        let max_tokens = self.limits.context.saturating_sub(held.tokens.len()) + 1;
        let body = wire::request(&self.spelling.text(&held.tokens), max_tokens, &choice);
        held.stream = Some(AnswerStream::open(&url, body)?);
        Ok(())
    }

    /// Waits for the next token of the sequence in a slot.
    fn next_token(&mut self, slot: usize) -> Result<TokenId, String> {
        let held = self.slots[slot].as_mut().ok_or("its slot is empty")?;
        let began = Instant::now();
        loop {
            if let Some(token) = held.ready.pop_front() {
                return Ok(token);
            }
            if let Some(end) = &held.end {
                return match end {
                    End::Stop => {
                        self.spelling.end().ok_or_else(|| "the model has no token that ends answers".to_owned())
                    }
                    End::Other(reason) => Err(format!("mistral.rs ended the answer by itself: {reason}")),
                };
            }
            let stream = held.stream.as_ref().ok_or("nothing was asked for")?;
            match stream.chunks().recv_timeout(LOOK_EVERY) {
                Ok(Ok(Chunk { text, end })) => {
                    held.ready.extend(self.spelling.spell(&text)?);
                    held.end = end;
                }
                Ok(Err(reason)) => return Err(self.supervisor.explain(reason)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.supervisor.explain("its stream has ended".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) if began.elapsed() > SILENCE_MAX => {
                    self.supervisor.stop();
                    return Err(format!("mistral.rs has given no token for {} s", SILENCE_MAX.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Pages count, and hold nothing; states are never copied or read, since prefixes are not cached.
impl PageBytes for MistralRsRunner {
    fn read(&mut self, range: Range<usize>) -> Cow<'_, [u8]> {
        Cow::Owned(vec![0; range.len()])
    }

    fn write(&mut self, _: usize, _: &[u8]) {}

    fn copy(&mut self, _: Range<usize>, _: usize) {}

    fn convert(&mut self, _: &[Conversion]) {}

    fn discard(&mut self, _: Range<usize>) {}

    fn copy_state(&mut self, _: StateSlot, _: StateSlot, _: usize) {}

    fn read_state(&mut self, _: StateSlot, _: usize) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn write_state(&mut self, _: StateSlot, _: usize, _: &[u8]) -> bool {
        false
    }

    /// Ends the stream, which ends the answer there too.
    fn discard_state(&mut self, slot: StateSlot) {
        self.slots[slot.0 as usize] = None;
    }
}

impl Runner for MistralRsRunner {
    fn limits(&self) -> &RunnerLimits {
        &self.limits
    }

    fn reserve_pages(&mut self, bytes: usize, _: Rotation) {
        self.page_bytes = bytes;
    }

    fn reserve_states(&mut self, slots: usize) {
        self.slots = (0..slots).map(|_| None).collect();
    }

    fn set_rotation(&mut self, _: Rotation) {}

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        self.check(batch)?;
        let began = Instant::now();
        self.asked.clear();
        let outcome = batch.sequences().iter().try_for_each(|sequence| self.take_rows(batch, sequence));
        self.run_time += began.elapsed();
        outcome
    }

    /// Waits until every sequence has its next token. One whose prompt is being computed keeps the others waiting: their tokens
    /// come meanwhile, and are there at once in the next steps.
    fn wait(&mut self) -> Result<(), RunnerError> {
        let began = Instant::now();
        let asked = std::mem::take(&mut self.asked);
        self.chosen = asked.into_iter().map(|(slot, asked)| asked.and_then(|()| self.next_token(slot))).collect();
        self.run_time += began.elapsed();
        Ok(())
    }

    /// None: there are none.
    fn logits(&mut self, _: usize) -> &mut [f32] {
        &mut []
    }

    fn candidates(&mut self, _: usize, _: usize, _: &mut Vec<Candidate>) -> Result<(), NotFinite> {
        Err(NotFinite)
    }

    fn chosen(&mut self, i: usize) -> Result<TokenId, RunnerError> {
        self.chosen[i].clone().map_err(RunnerError::StepFailed)
    }

    /// Text that a user wrote must not become control tokens, and what mistral.rs gets is text.
    fn check_prompt(&self, tokens: &[TokenId]) -> Result<(), String> {
        match self.spelling.first_forged(tokens) {
            Some(text) => Err(format!(
                "the prompt has the text {text:?}, which mistral.rs would read as a control token of this model; leave it \
                 out, or ask a model on another backend"
            )),
            None => Ok(()),
        }
    }

    /// None: their length is 0.
    fn hidden_state(&mut self, _: usize, _: &mut [f32]) {}

    fn has_adapter(&self, _: AdapterId) -> bool {
        false
    }

    fn yield_device(&mut self) {}

    fn take_device_wait(&mut self) -> Duration {
        Duration::ZERO
    }

    fn take_run_time(&mut self) -> Duration {
        std::mem::take(&mut self.run_time)
    }

    fn take_pass_times(&mut self) -> PassTimes {
        PassTimes::default()
    }
}
