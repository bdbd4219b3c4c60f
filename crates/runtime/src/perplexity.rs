//! Perplexity of a text, in chunks as in llama.cpp, so that figures can be compared.

use ruvllm_engine::{EvaluateError, HeldAdapter, TokenId};

use crate::{Engine, GenerateError, Prompt};

/// How well a model predicts a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    pub value: f64,
    /// One standard error.
    pub uncertainty: f64,
    pub chunks: usize,
    /// Tokens whose prediction was scored.
    pub scored_tokens: usize,
    pub text_tokens: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum PerplexityError {
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    #[error("the text has {tokens} tokens; at least {needed} are needed for a context of {context}")]
    TooShort { tokens: usize, needed: usize, context: usize },
    #[error("a context of {got} is too small; it must be at least 8")]
    Context { got: usize },
    #[error(transparent)]
    Encode(#[from] GenerateError),
}

impl Engine {
    /// Computes the perplexity of a text in chunks of `context` tokens. Each chunk is run on its own, its first token replaced by
    /// BOS where the model wants one, and the predictions of its second half are scored. `progress` gets the number of chunks
    /// done, their total, and the perplexity so far. Blocks the engine for the time of a chunk.
    pub fn perplexity(
        &self,
        text: &str,
        context: usize,
        progress: impl FnMut(usize, usize, f64),
    ) -> Result<Perplexity, PerplexityError> {
        self.perplexity_with(None, text, context, progress)
    }

    /// Computes the perplexity with an adapter.
    pub fn perplexity_with(
        &self,
        adapter: Option<&HeldAdapter>,
        text: &str,
        context: usize,
        mut progress: impl FnMut(usize, usize, f64),
    ) -> Result<Perplexity, PerplexityError> {
        if context < 8 {
            return Err(PerplexityError::Context { got: context });
        }
        let tokens = self.encode(&Prompt::Text(text.to_owned()))?;
        let bos = self.tokenizer().bos().filter(|_| self.tokenizer().adds_bos());
        let needed = context * 2;
        if tokens.len() < needed {
            return Err(PerplexityError::TooShort { tokens: tokens.len(), needed, context });
        }
        let chunks = tokens.len() / context;
        let first = context / 2;
        let (mut sum, mut squares, mut scored) = (0f64, 0f64, 0usize);
        for (done, chunk) in tokens.chunks_exact(context).enumerate() {
            let mut input = chunk.to_vec();
            if let Some(bos) = bos {
                input[0] = bos;
            }
            let visit = |position: usize, logits: &[f32]| {
                let surprise = -log_probability(logits, chunk[position + 1]);
                sum += surprise;
                squares += surprise * surprise;
                scored += 1;
            };
            self.model().thread.core().evaluate_with(adapter, &input, first..context - 1, visit)?;
            progress(done + 1, chunks, (sum / scored as f64).exp());
        }
        let mean = sum / scored as f64;
        let variance = squares / scored as f64 - mean * mean;
        let uncertainty = (variance / (scored - 1) as f64).sqrt() * mean.exp();
        Ok(Perplexity { value: mean.exp(), uncertainty, chunks, scored_tokens: scored, text_tokens: tokens.len() })
    }
}

pub(crate) fn log_probability(logits: &[f32], token: TokenId) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(logits[token as usize] - largest) - total.ln()
}
