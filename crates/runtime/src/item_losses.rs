//! How badly the tokens of an item are predicted, in the arithmetic that requests are served with.

use ruvllm_engine::{EvaluateError, HeldAdapter, TokenId};

use crate::Engine;
use crate::perplexity::log_probability;

impl Engine {
    /// Returns the losses of an item's targets in their order, in nats. An adapter applies from where it would in a
    /// request: an activated one from its invocation tokens on. Blocks the engine for the time of the item.
    pub fn target_losses(
        &self,
        adapter: Option<&HeldAdapter>,
        tokens: &[TokenId],
        targets: &[bool],
    ) -> Result<Vec<f64>, EvaluateError> {
        let is_target = |at: usize| targets.get(at).copied().unwrap_or(false);
        let first = (1..tokens.len()).find(|at| is_target(*at));
        let last = (1..tokens.len()).rfind(|at| is_target(*at));
        let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
        let mut losses = Vec::with_capacity(last - first + 1);
        // The row of a token predicts the next one, and what comes behind the last target predicts nothing.
        self.model().thread.core().evaluate_with(adapter, &tokens[..last], first - 1..last, |position, logits| {
            if is_target(position + 1) {
                losses.push(-log_probability(logits, tokens[position + 1]));
            }
        })?;
        Ok(losses)
    }
}
