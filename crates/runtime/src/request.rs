//! A request and its answer.

use ruvllm_engine::{FinishReason, Sampling, TokenLogprob};

use crate::Prompt;

/// What to generate, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub prompt: Prompt,
    pub sampling: Sampling,
    /// Tokens to generate at most; `None` is whatever the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
}

impl Request {
    pub fn new(prompt: Prompt) -> Self {
        Self { prompt, sampling: Sampling::default(), max_tokens: None, stop: Vec::new() }
    }
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// All that were generated, with the one that ended the answer.
    pub completion_tokens: usize,
}

/// How long a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// From submission to the first token.
    pub ttft_ms: f64,
    /// Prompt tokens per second until the first token.
    pub prefill_tok_s: f64,
    /// Tokens per second after the first one; 0 if there was only one.
    pub decode_tok_s: f64,
}

/// An answer, complete or as far as it has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    pub text: String,
    /// All tokens that were generated, with the one that ended the answer.
    pub tokens: Vec<u32>,
    /// For each token, where asked for: its log-probability and the likeliest alternatives.
    pub logprobs: Vec<(f32, Vec<TokenLogprob>)>,
    /// `None` while the answer is unfinished.
    pub finish_reason: Option<FinishReason>,
    pub usage: Usage,
    pub timings: Timings,
}
