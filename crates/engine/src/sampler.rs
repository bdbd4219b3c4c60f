//! Choosing a token from logits.

use std::sync::Arc;

use ruvllm_runner::{Candidate, CandidateScan, NotFinite, Runner, RunnerError, TokenChoice, TokenId, keep_likeliest};

use crate::constraint;
use crate::penalties::History;
use crate::random::Random;
use crate::recall::RowRecall;
use crate::{Recall, Sampling, SequenceId, StepError};

/// A token and the logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    pub token: TokenId,
    pub logprob: f32,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: TokenId,
    /// Its probability under the model itself (before a memory, penalties and temperature), with the likeliest
    /// alternatives. Only where logprobs were asked for.
    pub logprobs: Option<(f32, Vec<TokenLogprob>)>,
    /// The share of the request's memory in the mixture that it was chosen from. Only for requests with one.
    pub recall_share: Option<f32>,
}

/// Why there is no next token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoToken {
    /// Its logits are not numbers.
    NotFinite,
    /// The runner, which chooses tokens by itself, has none for this sequence.
    NotChosen(RunnerError),
}

impl NoToken {
    /// Returns the error that a sequence ends with.
    pub(crate) fn of(self, sequence: SequenceId) -> StepError {
        match self {
            Self::NotFinite => StepError::NotANumber { sequence },
            Self::NotChosen(error) => StepError::Runner { sequence, error },
        }
    }
}

impl From<NotFinite> for NoToken {
    fn from(NotFinite: NotFinite) -> Self {
        Self::NotFinite
    }
}

/// The sampling state of one sequence.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    history: History,
    random: Random,
    recall: Option<Box<RowRecall>>,
    // Kept between tokens, so that sampling does not allocate.
    scan: CandidateScan,
    candidates: Vec<Candidate>,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling, recall: Option<Arc<Recall>>, prompt: &[TokenId]) -> Self {
        let random = Random::new(sampling.seed);
        let history = History::new(prompt);
        let recall = recall.map(|recall| Box::new(RowRecall::new(recall)));
        Self { sampling, history, random, recall, scan: CandidateScan::default(), candidates: Vec::new() }
    }

    /// Chooses the next token from the `i`-th logit row of a runner, which is this row of the batch, among the
    /// `allowed` ones if a set is given.
    pub(crate) fn sample_row(
        &mut self,
        runner: &mut dyn Runner,
        (i, row): (usize, usize),
        allowed: Option<&[u32]>,
    ) -> Result<Sampled, NoToken> {
        if runner.limits().chooses_tokens {
            let token = runner.chosen(i).map_err(NoToken::NotChosen)?;
            return Ok(Sampled { token, logprobs: None, recall_share: None });
        }
        if let Some(recall) = &mut self.recall {
            recall.read_state(runner, row);
            return Ok(self.sample(runner.logits(i), allowed)?);
        }
        match self.candidates_needed().filter(|_| allowed.is_none()) {
            Some(count) => {
                runner.candidates(i, count, &mut self.candidates)?;
                let token = if self.is_greedy() { self.candidates[0].0 } else { self.draw() };
                self.history.push(token);
                Ok(Sampled { token, logprobs: None, recall_share: None })
            }
            None => Ok(self.sample(runner.logits(i), allowed)?),
        }
    }

    /// Returns what a runner that chooses tokens by itself is told.
    pub(crate) fn choice(&self) -> TokenChoice {
        self.sampling.choice()
    }

    fn is_greedy(&self) -> bool {
        self.sampling.temperature == 0.0
    }

    /// Returns how many of the likeliest tokens are enough to choose from, unless all logits are needed.
    fn candidates_needed(&self) -> Option<usize> {
        let Sampling { top_k, top_logprobs, .. } = self.sampling;
        let is_plain = top_logprobs.is_none() && !self.sampling.adjusts_logits();
        let count = if self.is_greedy() { 1 } else { top_k };
        (is_plain && count > 0).then_some(count)
    }

    /// Chooses the next token from all logits, which are changed on the way.
    pub(crate) fn sample(&mut self, logits: &mut [f32], allowed: Option<&[u32]>) -> Result<Sampled, NotFinite> {
        let logprobs = self.sampling.top_logprobs.map(|count| Logprobs::of(logits, count));
        // First of all: what a request asks of the answer, and what a grammar demands of it, holds for the mixture.
        let recall_share = self.recall.as_mut().map(|recall| recall.mix(self.history.tokens(), logits));
        self.history.adjust(&self.sampling, logits);
        if let Some(allowed) = allowed {
            constraint::apply(allowed, logits);
        }
        // After the adjustment, which can overflow too.
        let largest = self.scan.scan(logits)?;
        let token = if self.is_greedy() {
            self.scan.first(logits, largest)
        } else {
            self.scan.likeliest(logits, self.sampling.top_k, &mut self.candidates);
            keep_likeliest(&mut self.candidates, self.sampling.top_k);
            self.draw()
        };
        self.history.push(token);
        if let Some(recall) = &mut self.recall {
            recall.accept(token);
        }
        let logprobs = logprobs.map(|logprobs| (logprobs.all[token as usize], logprobs.top));
        Ok(Sampled { token, logprobs, recall_share })
    }

    /// Draws a token from the candidates, the likeliest first.
    fn draw(&mut self) -> TokenId {
        let Sampling { temperature, top_p, min_p, typical_p, .. } = self.sampling;
        let candidates = &mut self.candidates;
        to_probabilities(candidates, temperature);
        keep_typical(candidates, typical_p);
        keep_top_share(candidates, top_p);
        keep_above_share(candidates, min_p);
        let total: f64 = candidates.iter().map(|(_, p)| f64::from(*p)).sum();
        let mut left = self.random.unit() * total;
        for (token, probability) in candidates.iter() {
            left -= f64::from(*probability);
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding can leave a last grain; the likeliest token is always a candidate.
        candidates[0].0
    }
}

/// Log-probabilities of a step, before anything is changed.
struct Logprobs {
    all: Vec<f32>,
    top: Vec<TokenLogprob>,
}

impl Logprobs {
    fn of(logits: &[f32], count: usize) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let all: Vec<f32> = logits.iter().map(|logit| (f64::from(logit - largest) - total.ln()) as f32).collect();
        let mut order: Vec<Candidate> = all.iter().enumerate().map(|(token, p)| (token as TokenId, *p)).collect();
        if count == 0 {
            order.clear();
        } else {
            keep_likeliest(&mut order, count);
        }
        let top = order.into_iter().map(|(token, logprob)| TokenLogprob { token, logprob }).collect();
        Self { all, top }
    }
}

fn to_probabilities(candidates: &mut [Candidate], temperature: f32) {
    let largest = candidates[0].1;
    let mut total = 0f64;
    for (_, value) in candidates.iter_mut() {
        *value = ((*value - largest) / temperature).exp();
        total += f64::from(*value);
    }
    candidates.iter_mut().for_each(|(_, value)| *value = (f64::from(*value) / total) as f32);
}

/// Locally typical sampling: tokens whose surprise is nearest to the expected one.
fn keep_typical(candidates: &mut Vec<Candidate>, share: f32) {
    if share >= 1.0 {
        return;
    }
    let surprise = |p: f32| -f64::from(p.max(f32::MIN_POSITIVE)).ln();
    let entropy: f64 = candidates.iter().map(|(_, p)| f64::from(*p) * surprise(*p)).sum();
    candidates.sort_by(|a, b| (surprise(a.1) - entropy).abs().total_cmp(&(surprise(b.1) - entropy).abs()));
    truncate_to_share(candidates, share);
    keep_likeliest(candidates, 0);
}

fn keep_top_share(candidates: &mut Vec<Candidate>, share: f32) {
    if share < 1.0 {
        truncate_to_share(candidates, share);
    }
}

/// Keeps the shortest beginning that holds `share` of the probability.
fn truncate_to_share(candidates: &mut Vec<Candidate>, share: f32) {
    let total: f64 = candidates.iter().map(|(_, p)| f64::from(*p)).sum();
    let mut sum = 0f64;
    let keep = candidates.iter().position(|(_, p)| {
        sum += f64::from(*p);
        sum >= f64::from(share) * total
    });
    candidates.truncate(keep.map_or(candidates.len(), |last| last + 1));
}

fn keep_above_share(candidates: &mut Vec<Candidate>, share: f32) {
    let least = candidates[0].1 * share;
    candidates.retain(|(_, p)| *p >= least);
}

#[cfg(test)]
mod tests;
