//! Logits of a given text, for measurements.

use std::ops::Range;

use ruvllm_kernels::ops::{Batch, SequenceRows};
use ruvllm_kv::{PageTable, Tiers};

use super::Core;
use crate::{SubmitError, Tenant};

impl Core {
    /// Runs `tokens` as one text of its own and hands the logits after each position in `wanted` to `visit`.
    /// For measurements such as perplexity; sequences in flight are not touched, and nothing is cached.
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        wanted: Range<usize>,
        visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), SubmitError> {
        self.evaluate_in(&self.options.kv.tiers.clone(), tokens, wanted, visit)
    }

    /// The same with keys and values in other tiers, whose hot pages are those of this engine.
    pub fn evaluate_in(
        &mut self,
        tiers: &Tiers,
        tokens: &[u32],
        wanted: Range<usize>,
        mut visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), SubmitError> {
        let (vocabulary, context) = (self.model.config().vocabulary, self.model.context());
        if tokens.len() > context {
            return Err(SubmitError::PromptTooLong { prompt: tokens.len(), context });
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(SubmitError::NoSuchToken { token: *token, vocabulary });
        }
        let mut table = PageTable::default();
        let namespace = self.namespace(&Tenant::default());
        let pages = self.cache.pages_max(namespace);
        self.cache
            .extend(namespace, &mut table, tokens.len())
            .map_err(|short| SubmitError::TooLargeForCache { needed: short.needed, pages })?;
        for (chunk_index, chunk) in tokens.chunks(self.state.rows_max()).enumerate() {
            let start = chunk_index * self.state.rows_max();
            let rows = SequenceRows { rows: 0..chunk.len(), start, pages: table.pages() };
            let batch = Batch::new(vec![rows], self.cache.memory()).expect("there are pages for all tokens");
            let logit_rows: Vec<usize> = (0..chunk.len()).filter(|row| wanted.contains(&(start + row))).collect();
            let (state, kv) = (&mut self.state, self.cache.memory());
            self.model.forward(&mut self.pool, state, kv, &batch, chunk, &logit_rows);
            for (i, row) in logit_rows.iter().enumerate() {
                visit(start + row, self.state.logits(i));
            }
            self.cache.age_in(tiers, &mut self.pool, &mut table, start + chunk.len());
        }
        self.cache.end(None, &[], table);
        Ok(())
    }
}
