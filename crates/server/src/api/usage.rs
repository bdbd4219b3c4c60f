//! Usage of a request, in OpenAI's terms.

use ruvllm_runtime::{Timings, Usage};
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct UsageField {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokens,
    pub completion_tokens_details: CompletionTokens,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct PromptTokens {
    /// Prompt tokens that were cached.
    pub cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct CompletionTokens {
    /// Tokens of the reasoning before the answer.
    pub reasoning_tokens: usize,
}

impl From<Usage> for UsageField {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: PromptTokens { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionTokens { reasoning_tokens: usage.reasoning_tokens },
        }
    }
}

/// Times of a request in the engine. Not part of OpenAI's API.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct TimingsField {
    /// Until it started to run.
    pub queue_ms: f64,
    /// Until its first token.
    pub ttft_ms: f64,
    /// Until its last token.
    pub engine_ms: f64,
    /// Tokens per second after the first one.
    pub decode_tok_s: f64,
}

impl From<Timings> for TimingsField {
    fn from(timings: Timings) -> Self {
        let Timings { queue_ms, ttft_ms, total_ms: engine_ms, decode_tok_s, .. } = timings;
        Self { queue_ms, ttft_ms, engine_ms, decode_tok_s }
    }
}
