//! A run: steps over all epochs, judged after each by items that are not learned from.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, epoch_steps, packed};
use crate::lora::LoraWeights;
use crate::optimizer::{AdamW, clip, learning_rate};
use crate::{Base, Item, Machine, Pass, RunMemory, TrainError, TrainOptions};

/// What is learned from, and what the result is judged by.
#[derive(Clone, Debug, Default)]
pub struct Data {
    pub training: Vec<Item>,
    /// Items of other kinds that are mixed in, so that what was learned before is kept.
    pub replay: Vec<Item>,
    /// Never learned from. Without any, a run ends after its last epoch and keeps its last factors.
    pub validation: Vec<Item>,
}

/// A run that goes on step by step, and can be saved between any two.
pub struct Trainer {
    base: Arc<Base>,
    options: TrainOptions,
    pass: Pass,
    pub(crate) weights: LoraWeights,
    pub(crate) optimizer: AdamW,
    /// Those of the training, then those that are replayed.
    items: Vec<Item>,
    own: usize,
    validation: Vec<Item>,
    pub(crate) progress: Progress,
    /// The factors with the lowest validation loss so far.
    pub(crate) best: Option<Vec<f32>>,
    gradient: Vec<f32>,
    /// Steps of the epoch at hand.
    epoch_steps: Vec<Vec<usize>>,
    steps: usize,
    data_digest: String,
    base_digest: String,
}

/// How far a run has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Steps so far, over all epochs, and in the one at hand.
    pub step: usize,
    pub epoch_step: usize,
    pub epoch: usize,
    /// Tokens that were computed.
    pub tokens: u64,
    pub evaluations: Vec<Evaluation>,
    /// Epochs since the lowest validation loss.
    pub without_gain: usize,
    /// Sums over the targets of the epoch at hand.
    pub epoch_loss: f64,
    pub epoch_targets: u64,
}

/// The losses of an epoch, in nats per target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Epochs so far; 0 is the model alone.
    pub epoch: usize,
    pub training_loss: Option<f64>,
    pub validation_loss: Option<f64>,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Its number from 1, out of all.
    pub step: usize,
    pub steps: usize,
    pub epoch: usize,
    /// Mean of its targets before the step, in nats.
    pub loss: f64,
    /// Before it was shortened.
    pub gradient_norm: f64,
    pub learning_rate: f32,
    pub tokens: usize,
}

/// What a call has brought a run to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Advance {
    Stepped(StepReport),
    Evaluated(Evaluation),
    Done,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub steps: usize,
    pub tokens: u64,
    /// Before the first epoch and after each.
    pub evaluations: Vec<Evaluation>,
    /// That of the factors that were kept: the lowest.
    pub validation_loss: Option<f64>,
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trainer({:?}, step {} of {})", self.base, self.progress.step, self.steps)
    }
}

impl Trainer {
    /// Prepares a run. Refuses items that cannot be learned from, and a run that takes more memory than it may.
    pub fn new(base: Arc<Base>, options: TrainOptions, data: Data, machine: &Machine) -> Result<Self, TrainError> {
        options.check()?;
        let Data { training, replay, validation } = data;
        let own = training.len();
        let mut items = training;
        items.extend(replay);
        for (index, item) in items.iter().chain(&validation).enumerate() {
            item.check(index, base.shape.vocabulary, options.step_tokens)?;
        }
        if own == 0 {
            let remedy = "give at least one item to learn from".to_owned();
            return Err(TrainError::Option { option: "training", got: "empty".to_owned(), remedy });
        }
        let weights = LoraWeights::new(&base, &options)?;
        let rows = rows_needed(&items, &validation, options.step_tokens);
        let needed = RunMemory::of(&base, &weights, rows, machine.threads).total();
        if needed > machine.memory_budget {
            let (budget, step_tokens) = (machine.memory_budget, options.step_tokens);
            return Err(TrainError::Memory { needed, budget, step_tokens });
        }
        let steps_of =
            |epoch| epoch_steps(&items, own, options.replay_share, options.step_tokens, (options.seed, epoch));
        let steps = (0..options.epochs).map(|epoch| steps_of(epoch).len()).sum();
        Ok(Self {
            pass: Pass::new(&base, &weights, machine, rows),
            optimizer: AdamW::new(weights.numbers.len()),
            gradient: vec![0.0; weights.numbers.len()],
            epoch_steps: steps_of(0),
            data_digest: digest(&items, own, &validation),
            base_digest: base.digest(),
            progress: Progress::default(),
            best: None,
            base,
            options,
            weights,
            items,
            own,
            validation,
            steps,
        })
    }

    /// Goes on to the end, or until the machine's flag stops it; then it can be saved and goes on later from where it was.
    pub fn run(&mut self, report: &mut dyn FnMut(&Advance)) -> Result<Outcome, TrainError> {
        loop {
            let advance = self.advance()?;
            report(&advance);
            if advance == Advance::Done {
                return Ok(self.outcome());
            }
        }
    }

    /// Does one step, or judges the factors. What is stopped on the way has changed nothing.
    pub fn advance(&mut self) -> Result<Advance, TrainError> {
        if self.progress.evaluations.len() <= self.progress.epoch {
            return self.evaluate_epoch().map(Advance::Evaluated);
        }
        if self.is_done() {
            return Ok(Advance::Done);
        }
        self.step().map(Advance::Stepped)
    }

    fn is_done(&self) -> bool {
        self.progress.epoch >= self.options.epochs || self.progress.without_gain >= self.options.patience
    }

    fn step(&mut self) -> Result<StepReport, TrainError> {
        let indices = &self.epoch_steps[self.progress.epoch_step];
        let batch = Batch::new(indices.iter().map(|index| &self.items[*index]));
        self.gradient.fill(0.0);
        let each = 1.0 / batch.target_count() as f32;
        let target_weights = vec![each; batch.target_count()];
        let losses = self.pass.gradient(&self.base, &self.weights, &batch, &target_weights, &mut self.gradient)?;
        let sum: f64 = losses.iter().copied().map(f64::from).sum();
        let (step, loss) = (self.progress.step, sum / losses.len() as f64);
        let gradient_norm = clip(&mut self.gradient, self.options.gradient_norm_max);
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Err(TrainError::NotFinite { step: step + 1, loss });
        }
        let rate = learning_rate(&self.options, step, self.steps);
        self.optimizer.step(&mut self.weights.numbers, &self.gradient, rate, self.options.weight_decay);
        let report = StepReport {
            step: step + 1,
            steps: self.steps,
            epoch: self.progress.epoch + 1,
            loss,
            gradient_norm,
            learning_rate: rate,
            tokens: batch.rows(),
        };
        self.progress.step += 1;
        self.progress.tokens += batch.rows() as u64;
        self.progress.epoch_loss += sum;
        self.progress.epoch_targets += losses.len() as u64;
        self.progress.epoch_step += 1;
        if self.progress.epoch_step == self.epoch_steps.len() {
            self.progress.epoch += 1;
            self.progress.epoch_step = 0;
            self.plan_epoch();
        }
        Ok(report)
    }

    /// Puts the items of the epoch at hand into steps.
    pub(crate) fn plan_epoch(&mut self) {
        let TrainOptions { replay_share, step_tokens, seed, .. } = self.options;
        self.epoch_steps = epoch_steps(&self.items, self.own, replay_share, step_tokens, (seed, self.progress.epoch));
    }

    /// Returns the steps of the epoch at hand.
    pub(crate) fn epoch_len(&self) -> usize {
        self.epoch_steps.len()
    }

    fn evaluate_epoch(&mut self) -> Result<Evaluation, TrainError> {
        let validation_loss = self.validation_loss()?;
        let progress = &mut self.progress;
        let epoch = progress.epoch;
        let training_loss = (epoch > 0).then(|| progress.epoch_loss / progress.epoch_targets.max(1) as f64);
        let evaluation = Evaluation { epoch, training_loss, validation_loss };
        if let Some(loss) = validation_loss {
            let is_better = |other: &Evaluation| other.validation_loss.is_none_or(|other| loss < other);
            if progress.evaluations.iter().all(is_better) {
                self.best = Some(self.weights.numbers.clone());
                progress.without_gain = 0;
            } else {
                progress.without_gain += 1;
            }
        }
        progress.evaluations.push(evaluation);
        (progress.epoch_loss, progress.epoch_targets) = (0.0, 0);
        Ok(evaluation)
    }

    /// Computes the mean loss of the items that are not learned from, in nats.
    fn validation_loss(&mut self) -> Result<Option<f64>, TrainError> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        // Before the first step the factors change nothing.
        let is_adapted = self.progress.step > 0;
        let items: Vec<usize> = (0..self.validation.len()).collect();
        let (mut sum, mut count) = (0f64, 0);
        for step in packed(&self.validation, &items, self.options.step_tokens) {
            let batch = Batch::new(step.iter().map(|index| &self.validation[*index]));
            let losses = self.pass.losses(&self.base, &self.weights, &batch, is_adapted)?;
            sum += losses.iter().copied().map(f64::from).sum::<f64>();
            count += losses.len();
        }
        Ok(Some(sum / count as f64))
    }

    fn outcome(&self) -> Outcome {
        let evaluations = self.progress.evaluations.clone();
        let losses = evaluations.iter().filter_map(|evaluation| evaluation.validation_loss);
        Outcome {
            steps: self.progress.step,
            tokens: self.progress.tokens,
            validation_loss: losses.reduce(f64::min),
            evaluations,
        }
    }

    /// Returns the factors to keep: those with the lowest validation loss, or the last.
    pub fn factors(&self) -> LoraWeights {
        let mut weights = self.weights.clone();
        if let Some(best) = &self.best {
            weights.numbers.clone_from(best);
        }
        weights
    }

    pub fn base(&self) -> &Base {
        &self.base
    }

    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// Returns the digests of the model and of the items.
    pub fn digests(&self) -> (&str, &str) {
        (&self.base_digest, &self.data_digest)
    }

    /// Returns how many items are learned from, replayed, and judged by.
    pub fn item_counts(&self) -> [usize; 3] {
        [self.own, self.items.len() - self.own, self.validation.len()]
    }
}

/// Returns the rows of the largest step that there can be.
fn rows_needed(items: &[Item], validation: &[Item], step_tokens: usize) -> usize {
    let most = |items: &[Item]| items.iter().map(Item::rows).sum::<usize>();
    most(items).max(most(validation)).clamp(1, step_tokens)
}

fn digest(items: &[Item], own: usize, validation: &[Item]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm training data 1");
    hasher.update(&(own as u64).to_le_bytes());
    hasher.update(&(items.len() as u64).to_le_bytes());
    for item in items.iter().chain(validation) {
        hasher.update(&(item.tokens.len() as u64).to_le_bytes());
        hasher.update(&(item.active_from as u64).to_le_bytes());
        for token in &item.tokens {
            hasher.update(&token.to_le_bytes());
        }
        for is_target in &item.targets {
            hasher.update(&[u8::from(*is_target)]);
        }
    }
    hasher.finalize().to_hex().to_string()
}
