//! A request and its answer.

use ruvllm_engine::{FinishReason, Sampling, Speculation, TokenLogprob};

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
    /// Whether to guess tokens ahead. Makes no difference to the answer, only to how soon it comes.
    pub speculation: Speculation,
}

impl Request {
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            sampling: Sampling::default(),
            max_tokens: None,
            stop: Vec::new(),
            speculation: Speculation::default(),
        }
    }
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// All that were generated, with the one that ended the answer.
    pub completion_tokens: usize,
    /// Passes through the model that generated them.
    pub steps: usize,
    /// Tokens that were guessed ahead, and how many of them were right: those needed no pass of their own.
    pub drafted_tokens: usize,
    pub accepted_tokens: usize,
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
