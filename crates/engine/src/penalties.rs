//! Changes to the logits that depend on what a sequence holds already.

use std::collections::HashMap;

use ruvllm_runner::TokenId;

use crate::Sampling;

/// How often each token was generated, and the tokens of the whole sequence.
#[derive(Debug, Default)]
pub(crate) struct History {
    tokens: Vec<TokenId>,
    generated: HashMap<TokenId, u32>,
}

impl History {
    pub(crate) fn new(prompt: &[TokenId]) -> Self {
        Self { tokens: prompt.to_vec(), generated: HashMap::new() }
    }

    /// Returns the whole sequence.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub(crate) fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        *self.generated.entry(token).or_default() += 1;
    }

    /// Applies bias and penalties in place.
    pub(crate) fn adjust(&self, sampling: &Sampling, logits: &mut [f32]) {
        for (token, bias) in &sampling.logit_bias {
            logits[*token as usize] += bias;
        }
        if sampling.repetition_penalty != 1.0 {
            self.penalize_repetition(sampling, logits);
        }
        if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
            for (token, count) in &self.generated {
                let penalty = sampling.presence_penalty + sampling.frequency_penalty * *count as f32;
                logits[*token as usize] -= penalty;
            }
        }
    }

    fn penalize_repetition(&self, sampling: &Sampling, logits: &mut [f32]) {
        let window = match sampling.repetition_window {
            0 => self.tokens.len(),
            window => window.min(self.tokens.len()),
        };
        let mut seen = self.tokens[self.tokens.len() - window..].to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            let logit = &mut logits[token as usize];
            *logit *= if *logit > 0.0 { 1.0 / sampling.repetition_penalty } else { sampling.repetition_penalty };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_counts_each_token_once_and_respects_its_window() {
        let mut history = History::new(&[0, 1, 1]);
        history.push(2);
        let sampling = Sampling { repetition_penalty: 2.0, repetition_window: 3, ..Sampling::default() };
        let mut logits = [1.0, 1.0, -1.0, 1.0];
        history.adjust(&sampling, &mut logits);
        assert_eq!(logits, [1.0, 0.5, -2.0, 1.0]);
    }

    #[test]
    fn presence_and_frequency_look_at_generated_tokens_only() {
        let mut history = History::new(&[0]);
        [1, 2, 2].iter().for_each(|token| history.push(*token));
        let sampling = Sampling { presence_penalty: 0.5, frequency_penalty: 0.25, ..Sampling::default() };
        let mut logits = [1.0; 4];
        history.adjust(&sampling, &mut logits);
        assert_eq!(logits, [1.0, 0.25, 0.0, 1.0]);
    }
}
