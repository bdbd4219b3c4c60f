//! The answer to a request, and what it took.

use std::fmt;

use ruvllm_engine::{FinishReason, TokenId, TokenLogprob};

use crate::{TextEmbeddings, ToolCall};

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were left out because they did not fit; not part of `prompt_tokens`.
    pub truncated_tokens: usize,
    /// Prompt tokens served by the prefix cache.
    pub cached_tokens: usize,
    /// Cached tokens that were loaded from disk.
    pub loaded_tokens: usize,
    /// Generated tokens, including the one that ended the answer.
    pub completion_tokens: usize,
    /// Generated tokens of the reasoning before the answer.
    pub reasoning_tokens: usize,
    /// Forward passes that generated them.
    pub steps: usize,
    /// Draft tokens that were verified.
    pub drafted_tokens: usize,
    /// Draft tokens that were accepted: they needed no pass of their own.
    pub accepted_tokens: usize,
    /// Those of the two that came from a draft model.
    pub drafted_by_model: usize,
    pub accepted_by_model: usize,
}

/// Timings of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Time from submission to the first step.
    pub queue_ms: f64,
    /// Time from submission to the first token.
    pub ttft_ms: f64,
    /// Prompt tokens per second until the first token.
    pub prefill_tok_s: f64,
    /// Tokens per second after the first one; 0 if there was only one.
    pub decode_tok_s: f64,
    /// Time from submission to the last token so far.
    pub total_ms: f64,
}

/// The memory of corrected texts that an answer was drawn with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecallUse {
    /// Texts in it.
    pub items: usize,
    /// Its mean share of the mixtures that the tokens so far were drawn from.
    pub share: f64,
}

/// Where a prompt diverged from a cached text: why the prefix match ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The first token of the prompt that differs.
    pub at: usize,
    /// The next few tokens of the cached text.
    pub cached: String,
    /// The next few tokens of the prompt.
    pub asked: String,
}

/// `diverged at token 412: "2026-11-15 00:12" was cached, "2026-11-15 00:13" was asked for`
impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, cached, asked } = self;
        write!(f, "diverged at token {at}: {cached:?} was cached, {asked:?} was asked for")
    }
}

/// An answer, complete or as far as it has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    /// What the model wrote for itself before its answer.
    pub reasoning: String,
    pub text: String,
    /// Tool calls of the model. The last one may be incomplete if the answer was cut off.
    pub tool_calls: Vec<ToolCall>,
    /// Generated tokens, including the one that ended the answer.
    pub tokens: Vec<TokenId>,
    /// Log-probability of each token and its likeliest alternatives, where asked for.
    pub logprobs: Vec<(f32, Vec<TokenLogprob>)>,
    /// `None` while the answer is unfinished.
    pub finish_reason: Option<FinishReason>,
    /// Index of the stop string that ended the answer, if one did.
    pub stop_index: Option<usize>,
    /// Whether the answer was found to be valid, where its schema could not be enforced completely: an error says what is
    /// wrong, or why it could not be checked.
    pub validity: Option<Result<(), String>>,
    /// Temperature of the sampler, from the request or a policy.
    pub temperature: f32,
    /// Nucleus of the sampler, from the request or a policy.
    pub top_p: f32,
    /// The memory that it was drawn with, if there was one.
    pub recall: Option<RecallUse>,
    pub usage: Usage,
    /// Where the prompt diverged from a cached text, if it did.
    pub divergence: Option<Divergence>,
    pub timings: Timings,
    /// Embeddings, where asked for, once the answer is finished.
    pub embeddings: TextEmbeddings,
}
