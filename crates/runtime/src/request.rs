//! A request and its answer.

use std::fmt;
use std::time::Duration;

use ruvllm_engine::{FinishReason, PrefixUse, Sampling, Speculation, Tenant, TokenLogprob};

use crate::{Prompt, Shape, TextEmbeddings, Tool, ToolCall, ToolChoice, Truncation};

/// What to generate, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub prompt: Prompt,
    /// How many answers; the prompt is prepared once for all of them.
    pub choices: usize,
    /// The first answer is drawn with its seed, the second with the next, and so on.
    pub sampling: Sampling,
    /// Tokens to generate at most; `None` is whatever the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// What the answer must look like; anything goes by default.
    pub shape: Option<Shape>,
    /// Tools that the model may call, in a conversation.
    pub tools: Tools,
    /// What happens to a prompt that leaves no room for the answer.
    pub truncation: Truncation,
    /// Whether to guess tokens ahead. Makes no difference to the answer, only to how soon it comes.
    pub speculation: Speculation,
    /// On whose behalf. Tenants share the engine fairly, and never each other's cached prefixes.
    pub tenant: Tenant,
    /// Requests of a higher priority start first.
    pub priority: i8,
    /// How long anybody waits for the whole answer; then it ends with an error.
    pub patience: Option<Duration>,
    /// Whether and how the prefix cache is used. Makes no difference to the answer with KV of one format.
    pub prefix_use: PrefixUse,
    /// Whether the response carries embeddings of prompt and answer. Only engines that keep hidden states give any.
    pub embeddings: bool,
    /// The conversation that goes on with this request, or begins. Needs a memory.
    pub session: Option<String>,
    /// What was not said, so that policies may decide it where there is a memory.
    pub left_open: LeftOpen,
}

/// Settings that a request did not give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOpen {
    pub temperature: bool,
    pub top_p: bool,
    pub max_tokens: bool,
}

impl Request {
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            choices: 1,
            sampling: Sampling::default(),
            max_tokens: None,
            stop: Vec::new(),
            shape: None,
            tools: Tools::default(),
            truncation: Truncation::default(),
            speculation: Speculation::default(),
            tenant: Tenant::default(),
            priority: 0,
            patience: None,
            prefix_use: PrefixUse::default(),
            session: None,
            left_open: LeftOpen::default(),
            embeddings: false,
        }
    }
}

/// Tools that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    pub definitions: Vec<Tool>,
    pub choice: ToolChoice,
    /// Whether an answer may have several calls; unless told, if the model was trained to call tools. Others repeat
    /// themselves.
    pub are_parallel: Option<bool>,
}

impl Default for Tools {
    fn default() -> Self {
        Self { definitions: Vec::new(), choice: ToolChoice::Auto, are_parallel: None }
    }
}

impl Tools {
    /// Those that the model is told of.
    pub(crate) fn offered(&self) -> &[Tool] {
        if self.choice == ToolChoice::None { &[] } else { &self.definitions }
    }
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were left out because they did not fit; they are not among the others.
    pub truncated_tokens: usize,
    /// Prompt tokens that had been computed before, and those of them that were loaded from disk.
    pub cached_tokens: usize,
    pub loaded_tokens: usize,
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
    /// From submission until it began to run.
    pub queue_ms: f64,
    /// From submission to the first token.
    pub ttft_ms: f64,
    /// Prompt tokens per second until the first token.
    pub prefill_tok_s: f64,
    /// Tokens per second after the first one; 0 if there was only one.
    pub decode_tok_s: f64,
    /// From submission to the last token so far.
    pub total_ms: f64,
}

/// Where a prompt left a text whose keys and values were cached: why no more of them could be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The first token of the prompt that differs.
    pub at: usize,
    /// What the cached text has there, and what the prompt has: the next few tokens of both.
    pub cached: String,
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
    pub text: String,
    /// What the model wants to be called. The last call may be incomplete if the answer was cut off.
    pub tool_calls: Vec<ToolCall>,
    /// All tokens that were generated, with the one that ended the answer.
    pub tokens: Vec<u32>,
    /// For each token, where asked for: its log-probability and the likeliest alternatives.
    pub logprobs: Vec<(f32, Vec<TokenLogprob>)>,
    /// `None` while the answer is unfinished.
    pub finish_reason: Option<FinishReason>,
    /// Which of the request's stop strings ended the answer, if one did.
    pub stop_index: Option<usize>,
    /// What tokens were drawn with: as the request says, or a policy where it says nothing.
    pub temperature: f32,
    pub top_p: f32,
    pub usage: Usage,
    /// Where the prompt left a cached text, if there is one that began like it and went on otherwise.
    pub divergence: Option<Divergence>,
    pub timings: Timings,
    /// Where asked for, once the answer is finished.
    pub embeddings: TextEmbeddings,
}
