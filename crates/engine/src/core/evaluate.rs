//! Logits of a given text, for measurements.

use std::ops::Range;

use ruvllm_kv::{PageTable, Tiers};
use ruvllm_runner::{HeldAdapter, RowsAdapter, RunnerError, RunnerLimits, TokenId};

use super::Core;
use crate::{SubmitError, Tenant};

/// Why a text cannot be evaluated.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum EvaluateError {
    #[error(transparent)]
    Refused(#[from] SubmitError),
    #[error("running sequences have all slots for recurrent states; try again later or raise the KV budget")]
    NoStateSlot,
    #[error("the model's output for this text is not a number; its weights are damaged or overflow")]
    NotANumber,
    #[error(transparent)]
    Runner(#[from] RunnerError),
}

impl Core {
    /// Runs `tokens` as one text of its own and hands the logits after each position in `wanted` to `visit`.
    /// For measurements such as perplexity; sequences in flight are not touched, and nothing is cached.
    pub fn evaluate(
        &mut self,
        tokens: &[TokenId],
        wanted: Range<usize>,
        visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        self.evaluate_with(None, tokens, wanted, visit)
    }

    /// The same with an adapter, from its first token on.
    pub fn evaluate_with(
        &mut self,
        adapter: Option<&HeldAdapter>,
        tokens: &[TokenId],
        wanted: Range<usize>,
        visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        let adapter = adapter.map(|held| RowsAdapter { id: held.id, from: held.start(tokens) });
        self.evaluate_text(&self.options.kv.tiers.clone(), adapter, tokens, wanted, visit)
    }

    /// The same with keys and values in other tiers, whose hot pages are those of this engine.
    pub fn evaluate_in(
        &mut self,
        tiers: &Tiers,
        tokens: &[TokenId],
        wanted: Range<usize>,
        visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        self.evaluate_text(tiers, None, tokens, wanted, visit)
    }

    fn evaluate_text(
        &mut self,
        tiers: &Tiers,
        adapter: Option<RowsAdapter>,
        tokens: &[TokenId],
        wanted: Range<usize>,
        visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        let RunnerLimits { vocabulary, context, chooses_tokens, .. } = *self.runner.limits();
        if chooses_tokens {
            return Err(SubmitError::NoLogits.into());
        }
        if tokens.len() > context {
            return Err(SubmitError::PromptTooLong { prompt: tokens.len(), context }.into());
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(SubmitError::NoSuchToken { token: *token, vocabulary }.into());
        }
        let mut table = PageTable::default();
        let namespace = self.namespace(&Tenant::default(), None);
        let pages = self.cache.pages_max(namespace);
        self.cache
            .extend(namespace, &mut table, tokens.len(), &mut *self.runner)
            .map_err(|short| SubmitError::TooLargeForCache { needed: short.needed, pages })?;
        let begun = self.cache.begin_state(&mut table, &mut *self.runner);
        if begun.is_err() {
            self.release_table(None, &[], table);
            return Err(EvaluateError::NoStateSlot);
        }
        let outcome = self.evaluate_chunks(tiers, adapter, tokens, wanted, &mut table, visit);
        self.release_table(None, &[], table);
        outcome
    }

    fn evaluate_chunks(
        &mut self,
        tiers: &Tiers,
        adapter: Option<RowsAdapter>,
        tokens: &[TokenId],
        wanted: Range<usize>,
        table: &mut PageTable,
        mut visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        let RunnerLimits { rows_max, logit_rows_max, .. } = *self.runner.limits();
        let mut end = 0;
        while end < tokens.len() {
            let start = end;
            end = tokens.len().min(start + rows_max);
            let first_wanted = wanted.start.max(start);
            if wanted.end.min(end).saturating_sub(first_wanted) > logit_rows_max {
                end = first_wanted + logit_rows_max;
            }
            let chunk = &tokens[start..end];
            let logit_rows = || (0..chunk.len()).filter(|row| wanted.contains(&(start + row)));
            self.batch.clear();
            self.batch.push(start, chunk.iter().copied(), 0, self.cache.locations(table), adapter);
            if self.fast_rows_min.is_some_and(|min| tokens.len() >= min) {
                self.batch.set_fast();
            }
            if let Some(slot) = table.state() {
                self.batch.set_state(slot, 0);
            }
            self.batch.set_logit_rows(logit_rows());
            self.runner.submit(&self.batch)?;
            self.runner.wait()?;
            for (i, row) in logit_rows().enumerate() {
                visit(start + row, self.runner.logits(i));
            }
            self.cache.demote_by_age_in(tiers, table, start + chunk.len(), &mut *self.runner);
        }
        Ok(())
    }
}
