//! Observes what the model makes of a text that is to be remembered, a few rows at a time.

use std::sync::Arc;

use ruvllm_kv::{KvCache, PageTable};
use ruvllm_runner::{HeldAdapter, RowsAdapter, RunnerLimits, TokenId};

use super::{Core, EvaluateError};
use crate::{RecallItem, RecallSpace, SubmitError, Tenant};

/// What is impossible to the model surprises it no more than this.
const SURPRISE_MAX: f32 = 100.0;

/// A text that is to be remembered, for answers with the same adapter.
#[derive(Clone, Debug)]
pub struct TextToObserve {
    pub tokens: Vec<TokenId>,
    /// The first token that is remembered: what stands before it is its prompt.
    pub first_target: usize,
    /// States are those of this space; none are kept without.
    pub space: Option<Arc<RecallSpace>>,
    pub adapter: Option<HeldAdapter>,
}

/// A text and how far it has been observed. Its pages are its own and go as soon as a sequence needs them; then it
/// begins again.
#[derive(Debug)]
pub(super) struct Observation {
    text: TextToObserve,
    /// Whether it is the space itself that is wanted.
    is_measuring: bool,
    table: PageTable,
    computed: usize,
    surprises: Vec<f32>,
    codes: Vec<i8>,
    /// States as they are, where there is no space yet.
    states: Vec<f32>,
}

/// What was observed.
#[derive(Clone, Debug, PartialEq)]
pub enum Observed {
    Item(RecallItem),
    Space(RecallSpace),
}

impl Core {
    /// Begins to observe a text. Another that was being observed is given up.
    pub fn begin_observation(&mut self, text: TextToObserve) -> Result<(), SubmitError> {
        self.begin_observing(text, false)
    }

    /// Begins to observe how the channels of hidden states vary on a text. Panics if the runner gives none.
    pub fn begin_measuring_space(&mut self, tokens: Vec<TokenId>) -> Result<(), SubmitError> {
        assert!(self.runner.limits().hidden > 0, "there are no states");
        self.begin_observing(TextToObserve { tokens, first_target: 1, space: None, adapter: None }, true)
    }

    fn begin_observing(&mut self, text: TextToObserve, is_measuring: bool) -> Result<(), SubmitError> {
        let RunnerLimits { vocabulary, context, chooses_tokens, .. } = *self.runner.limits();
        if chooses_tokens {
            return Err(SubmitError::NoLogits);
        }
        let TextToObserve { tokens, first_target, adapter, .. } = &text;
        if adapter.as_ref().is_some_and(|adapter| !self.runner.has_adapter(adapter.id)) {
            return Err(SubmitError::NoSuchAdapter);
        }
        if !(1..tokens.len()).contains(first_target) {
            return Err(SubmitError::EmptyPrompt);
        }
        if tokens.len() > context {
            return Err(SubmitError::PromptTooLong { prompt: tokens.len(), context });
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(SubmitError::NoSuchToken { token: *token, vocabulary });
        }
        let pages = self.cache.pages_max(self.namespace(&Tenant::default(), None));
        let needed = KvCache::pages_for(tokens.len());
        if needed > pages {
            return Err(SubmitError::TooLargeForCache { needed, pages });
        }
        self.interrupt_observation();
        self.observation = Some(Observation {
            text,
            is_measuring,
            table: PageTable::default(),
            computed: 0,
            surprises: Vec::new(),
            codes: Vec::new(),
            states: Vec::new(),
        });
        Ok(())
    }

    /// Returns how many rows of the text that is being observed have been run.
    pub fn observed_rows(&self) -> usize {
        self.observation.as_ref().map_or(0, |observation| observation.computed)
    }

    #[cfg(test)]
    pub(super) fn has_observation(&self) -> bool {
        self.observation.is_some()
    }

    /// Gives up the text that is being observed.
    pub fn end_observation(&mut self) {
        self.interrupt_observation();
        self.observation = None;
    }

    /// Runs up to `rows` more of the text that is being observed, between two steps. Returns what was observed after
    /// the last of them. A text for which there are no pages now waits: it has the lowest priority of all.
    pub fn observe(&mut self, rows: usize) -> Result<Option<Observed>, EvaluateError> {
        let Some(mut observation) = self.observation.take() else { return Ok(None) };
        let outcome = self.observe_rows(&mut observation, rows);
        // Nobody waits for the device because of a step.
        self.runner.take_device_wait();
        match outcome {
            Ok(true) => {
                self.release_table(None, &[], std::mem::take(&mut observation.table));
                Ok(Some(observation.observed(self.runner.limits().hidden)))
            }
            Ok(false) => {
                self.observation = Some(observation);
                Ok(None)
            }
            Err(error) => {
                self.release_table(None, &[], std::mem::take(&mut observation.table));
                Err(error)
            }
        }
    }

    /// Gives the pages of the text that is being observed back. Returns whether it had any.
    pub(super) fn interrupt_observation(&mut self) -> bool {
        let Some(observation) = self.observation.as_mut().filter(|observation| observation.has_pages()) else {
            return false;
        };
        let table = std::mem::take(&mut observation.table);
        observation.restart();
        self.release_table(None, &[], table);
        true
    }

    /// Returns whether all rows have been run.
    fn observe_rows(&mut self, observation: &mut Observation, rows: usize) -> Result<bool, EvaluateError> {
        let RunnerLimits { rows_max, logit_rows_max, hidden, .. } = *self.runner.limits();
        let Observation { text, is_measuring, table, computed, surprises, codes, states } = observation;
        let TextToObserve { tokens, first_target, space, adapter } = text;
        if *computed == 0 {
            let namespace = self.namespace(&Tenant::default(), None);
            let has_pages = self.cache.extend(namespace, table, tokens.len(), &mut *self.runner).is_ok();
            if !has_pages || self.cache.begin_state(table, &mut *self.runner).is_err() {
                self.release_table(None, &[], std::mem::take(table));
                return Ok(false);
            }
        }
        let start = *computed;
        // Nothing follows the last token.
        let end = (tokens.len() - 1).min(start + rows.min(rows_max).min(logit_rows_max).max(1));
        self.batch.clear();
        let chunk = tokens[start..end].iter().copied();
        let start_of = |adapter: &HeldAdapter| adapter.start(&tokens[..*first_target]);
        let adapter = adapter.as_ref().map(|adapter| RowsAdapter { id: adapter.id, from: start_of(adapter) });
        self.batch.push(start, chunk, 0, self.cache.locations(table), adapter);
        if let Some(slot) = table.state() {
            self.batch.set_state(slot, 0);
        }
        self.batch.set_logit_rows(0..end - start);
        self.runner.submit(&self.batch)?;
        self.runner.wait()?;
        let mut state = vec![0f32; hidden];
        for row in 0..end - start {
            let next = start + row + 1;
            let surprise = surprise(self.runner.logits(row), tokens[next]);
            if surprise.is_nan() {
                return Err(EvaluateError::NotANumber);
            }
            surprises.push(surprise.min(SURPRISE_MAX));
            if next >= *first_target && hidden > 0 {
                self.runner.hidden_state(row, &mut state);
                match space {
                    Some(space) => space.encode(&state, codes),
                    None if *is_measuring => states.extend(&state),
                    None => {}
                }
            }
        }
        *computed = end;
        Ok(end == tokens.len() - 1)
    }
}

impl Observation {
    #[cfg(test)]
    pub(super) fn table(&self) -> &PageTable {
        &self.table
    }

    fn has_pages(&self) -> bool {
        self.table.capacity_tokens() > 0
    }

    fn restart(&mut self) {
        self.computed = 0;
        self.surprises.clear();
        self.codes.clear();
        self.states.clear();
    }

    fn observed(self, hidden: usize) -> Observed {
        if self.is_measuring {
            return Observed::Space(RecallSpace::measured(&self.states, hidden));
        }
        let TextToObserve { tokens, first_target, space, .. } = self.text;
        let width = space.as_ref().map_or(0, |space| space.width());
        let surprises = std::iter::once(0.0).chain(self.surprises).collect();
        Observed::Item(RecallItem::new(tokens, first_target, surprises, self.codes, width))
    }
}

/// Returns how much a token surprises by these logits, in nats.
fn surprise(logits: &[f32], token: TokenId) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - largest).exp())).sum();
    (f64::from(largest - logits[token as usize]) + sum.ln()) as f32
}
