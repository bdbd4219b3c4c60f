//! Generating models on candle: a [`Runner`] whose slots are candle's models, each with the keys and values of one sequence.
//!
//! Candle's models compute one sequence at a time, keep its keys and values to themselves, and give the logits of the last row
//! only. So prefixes are not cached, there are no draft tokens, and no hidden states: [`RunnerLimits`] says so, and the engine
//! above works as with any other runner.

mod architectures;
mod backend;
mod error;
mod keys;
mod source;
mod tensors;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use candle_transformers::models::{quantized_glm4, quantized_llama, quantized_phi};
use ruvllm_runner::{
    AdapterId, Batch, BatchError, Candidate, CandidateScan, Conversion, NotFinite, PageBytes, PassTimes, Rotation,
    RowsState, Runner, RunnerError, RunnerLimits, SequenceRows, StateSlot, TokenId,
};

pub use backend::Candle;
pub use error::CandleError;

/// A model as candle computes it, with the keys and values of one sequence. Clones share the weights.
#[derive(Clone)]
enum CandleModel {
    Llama(quantized_llama::ModelWeights),
    Phi2(quantized_phi::ModelWeights),
    Glm4(quantized_glm4::ModelWeights),
}

impl CandleModel {
    /// Runs tokens that follow the first `position` of the sequence. Returns the logits after the last of them.
    fn forward(&mut self, tokens: &[TokenId], position: usize) -> candle_core::Result<Vec<f32>> {
        let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let logits = match self {
            Self::Llama(model) => model.forward(&input, position),
            Self::Phi2(model) => model.forward(&input, position),
            Self::Glm4(model) => model.forward(&input, position),
        };
        logits?.flatten_all()?.to_vec1()
    }
}

impl fmt::Debug for CandleModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Llama(_) => "Llama",
            Self::Phi2(_) => "Phi2",
            Self::Glm4(_) => "Glm4",
        })
    }
}

/// A sequence in its slot.
#[derive(Debug)]
struct Sequence {
    model: CandleModel,
    /// Tokens whose keys and values the model holds.
    tokens: usize,
}

/// A model on candle.
#[derive(Debug)]
struct CandleRunner {
    /// Without keys and values: every sequence begins with a clone of it.
    model: CandleModel,
    slots: Vec<Option<Sequence>>,
    limits: RunnerLimits,
    /// Bytes of the pages that count what sequences take. There is nothing in them.
    page_bytes: usize,
    /// `[logit rows, vocabulary]`
    logits: Vec<f32>,
    scan: CandidateScan,
    run_time: Duration,
}

impl CandleRunner {
    fn new(model: CandleModel, limits: RunnerLimits) -> Self {
        Self {
            model,
            slots: Vec::new(),
            limits,
            page_bytes: 0,
            logits: Vec::new(),
            scan: CandidateScan::default(),
            run_time: Duration::ZERO,
        }
    }

    /// Returns the slot of a sequence, if that holds the tokens before its rows.
    fn slot(&self, sequence: &SequenceRows) -> Result<usize, BatchError> {
        let RowsState { slot, .. } = sequence.state.ok_or(BatchError::NoState)?;
        let held = self.slots.get(slot.0 as usize).ok_or(BatchError::NoState)?;
        let tokens = held.as_ref().map(|held| held.tokens);
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

    fn run(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        self.logits.clear();
        self.logits.resize(batch.logit_rows().len() * self.limits.vocabulary, 0.0);
        for sequence in batch.sequences() {
            let slot = self.slot(sequence)?;
            // Gone if it fails: what it holds is then unknown.
            let held = self.slots[slot].take().filter(|_| sequence.start > 0);
            let mut held = held.unwrap_or_else(|| Sequence { model: self.model.clone(), tokens: 0 });
            self.run_rows(batch, sequence, &mut held).map_err(|error| RunnerError::StepFailed(error.to_string()))?;
            self.slots[slot] = Some(held);
        }
        Ok(())
    }

    /// Runs the rows of a sequence. Candle gives the logits of the last row, so a pass ends with each row that wants some.
    fn run_rows(&mut self, batch: &Batch, sequence: &SequenceRows, held: &mut Sequence) -> candle_core::Result<()> {
        let vocabulary = self.limits.vocabulary;
        let mut first = sequence.rows.start;
        for row in sequence.rows.clone() {
            let wanted = batch.logit_rows().iter().position(|logit_row| *logit_row == row);
            if wanted.is_none() && row + 1 < sequence.rows.end {
                continue;
            }
            let tokens = &batch.tokens()[first..=row];
            let logits = held.model.forward(tokens, held.tokens)?;
            if logits.len() != vocabulary {
                candle_core::bail!("candle gave {} logits for a vocabulary of {vocabulary}", logits.len());
            }
            if let Some(index) = wanted {
                self.logits[index * vocabulary..][..vocabulary].copy_from_slice(&logits);
            }
            held.tokens += tokens.len();
            first = row + 1;
        }
        Ok(())
    }
}

/// Pages count, and hold nothing; states are never copied or read, since prefixes are not cached.
impl PageBytes for CandleRunner {
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

    fn discard_state(&mut self, slot: StateSlot) {
        self.slots[slot.0 as usize] = None;
    }
}

impl Runner for CandleRunner {
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
        let outcome = self.run(batch);
        self.run_time += began.elapsed();
        outcome
    }

    fn wait(&mut self) -> Result<(), RunnerError> {
        Ok(())
    }

    fn logits(&mut self, i: usize) -> &mut [f32] {
        &mut self.logits[i * self.limits.vocabulary..][..self.limits.vocabulary]
    }

    fn candidates(&mut self, i: usize, count: usize, out: &mut Vec<Candidate>) -> Result<(), NotFinite> {
        let logits = &self.logits[i * self.limits.vocabulary..][..self.limits.vocabulary];
        self.scan.find(logits, count, out)
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
