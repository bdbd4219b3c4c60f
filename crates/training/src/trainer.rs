//! A run: steps over all epochs, judged after each by items that are not learned from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::{fmt, iter};

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, epoch_steps, packed};
use crate::lora::LoraWeights;
use crate::optimizer::{AdamW, clip, learning_rate};
use crate::{Base, Item, Machine, Pass, Preferences, RunMemory, TrainError, TrainOptions};

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
    /// The leads that the base model gives: of pairs by the number of their item, as far as steps have had them, and of all
    /// that are held out.
    pub references: BTreeMap<usize, f32>,
    pub validation_references: Vec<f32>,
}

/// The losses of an epoch, in nats per target. Rejected answers are no part of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Epochs so far; 0 is the model alone.
    pub epoch: usize,
    pub training_loss: Option<f64>,
    pub validation_loss: Option<f64>,
    /// What becomes of pairs that are held out, if there are any.
    pub preferences: Option<Preferences>,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Its number from 1, out of all.
    pub step: usize,
    pub steps: usize,
    pub epoch: usize,
    /// Mean of its targets before the step, in nats, without those of rejected answers.
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
    /// That of the factors that were kept: the best, if anything was held out.
    pub kept: Option<Evaluation>,
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
        if options.preference_weight == 0.0 {
            items.iter_mut().for_each(|item| item.rejected = None);
        }
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
        let batch = Batch::new(self.epoch_steps[self.progress.epoch_step].iter().map(|index| &self.items[*index]));
        self.gradient.fill(0.0);
        let losses = self.add_gradient(&batch)?;
        let (sum, count) = batch.learned(&losses);
        let (step, loss) = (self.progress.step, sum / count as f64);
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
        self.progress.epoch_targets += count as u64;
        self.progress.epoch_step += 1;
        if self.progress.epoch_step == self.epoch_steps.len() {
            self.progress.epoch += 1;
            self.progress.epoch_step = 0;
            self.plan_epoch();
        }
        Ok(report)
    }

    /// Computes the gradient of the step at hand. Returns the losses before it.
    fn add_gradient(&mut self, batch: &Batch) -> Result<Vec<f32>, TrainError> {
        if batch.pairs.is_empty() {
            let target_weights = batch.target_weights(&[], &[], &self.options);
            return self.pass.gradient(&self.base, &self.weights, batch, &target_weights, &mut self.gradient);
        }
        let references = self.references()?;
        let weigh = |losses: &[f32]| batch.target_weights(losses, &references, &self.options);
        self.pass.gradient_by(&self.base, &self.weights, batch, weigh, &mut self.gradient)
    }

    /// Returns the leads that the base model gives for the pairs of the step at hand. Each is computed once.
    fn references(&mut self) -> Result<Vec<f32>, TrainError> {
        let (items, known) = (&self.items, &mut self.progress.references);
        let step = self.epoch_steps[self.progress.epoch_step].iter().copied();
        let pairs: Vec<usize> = step.filter(|index| items[*index].rejected.is_some()).collect();
        let unknown: Vec<usize> = pairs.iter().copied().filter(|index| !known.contains_key(index)).collect();
        if !unknown.is_empty() {
            let batch = Batch::new(unknown.iter().map(|index| &items[*index]));
            let losses = self.pass.losses(&self.base, &self.weights, &batch, false)?;
            known.extend(unknown.into_iter().zip(batch.leads(&losses)));
        }
        Ok(pairs.iter().map(|index| known[index]).collect())
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
        let (validation_loss, preferences) = self.validate()?;
        let Progress { epoch, epoch_loss, epoch_targets, .. } = self.progress;
        let training_loss = (epoch > 0).then(|| epoch_loss / epoch_targets.max(1) as f64);
        let evaluation = Evaluation { epoch, training_loss, validation_loss, preferences };
        if let Some(objective) = self.objective(&evaluation) {
            let is_better = |other| self.objective(other).is_none_or(|other| objective < other);
            if self.progress.evaluations.iter().all(is_better) {
                self.best = Some(self.weights.numbers.clone());
                self.progress.without_gain = 0;
            } else {
                self.progress.without_gain += 1;
            }
        }
        self.progress.evaluations.push(evaluation);
        (self.progress.epoch_loss, self.progress.epoch_targets) = (0.0, 0);
        Ok(evaluation)
    }

    /// Returns what factors are judged by: the loss of what is held out, and that of its preferences as in training.
    pub(crate) fn objective(&self, evaluation: &Evaluation) -> Option<f64> {
        let share = |preferences: &Preferences| preferences.pairs as f64 / self.validation.len() as f64;
        let preference = evaluation.preferences.map_or(0.0, |preferences| share(&preferences) * preferences.loss);
        Some(evaluation.validation_loss? + f64::from(self.options.preference_weight) * preference)
    }

    /// Computes the mean loss of the items that are not learned from, in nats, and what becomes of the pairs among them.
    fn validate(&mut self) -> Result<(Option<f64>, Option<Preferences>), TrainError> {
        if self.validation.is_empty() {
            return Ok((None, None));
        }
        // Before the first step the factors change nothing.
        let is_adapted = self.progress.step > 0;
        let items: Vec<usize> = (0..self.validation.len()).collect();
        let (mut sum, mut count, mut leads) = (0f64, 0, Vec::new());
        for step in packed(&self.validation, &items, self.options.step_tokens) {
            let batch = Batch::new(step.iter().map(|index| &self.validation[*index]));
            let losses = self.pass.losses(&self.base, &self.weights, &batch, is_adapted)?;
            let (of_batch, targets) = batch.learned(&losses);
            (sum, count) = (sum + of_batch, count + targets);
            leads.extend(batch.leads(&losses));
        }
        if !is_adapted {
            self.progress.validation_references.clone_from(&leads);
        }
        let preferences = Preferences::of(&leads, &self.progress.validation_references, self.options.beta);
        Ok((Some(sum / count as f64), preferences))
    }

    fn outcome(&self) -> Outcome {
        let Progress { step, tokens, evaluations, .. } = &self.progress;
        let judged = evaluations.iter().filter_map(|evaluation| Some((self.objective(evaluation)?, *evaluation)));
        let best = judged.min_by(|(one, _), (other, _)| one.total_cmp(other));
        Outcome {
            steps: *step,
            tokens: *tokens,
            evaluations: evaluations.clone(),
            kept: best.map(|(_, evaluation)| evaluation),
        }
    }

    /// Returns the factors to keep: those that were judged best, or the last.
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

    /// Returns how many items that are learned from and judged by have a rejected answer.
    pub fn pair_counts(&self) -> [usize; 2] {
        [&self.items[..self.own], &self.validation]
            .map(|items| items.iter().filter(|item| item.rejected.is_some()).count())
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
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm training data 2");
    hasher.update(&(own as u64).to_le_bytes());
    hasher.update(&(items.len() as u64).to_le_bytes());
    for item in items.iter().chain(validation).flat_map(|item| iter::once(item).chain(item.rejected.as_deref())) {
        hasher.update(&[u8::from(item.rejected.is_some())]);
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
