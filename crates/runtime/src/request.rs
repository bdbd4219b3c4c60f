//! A request: what to generate, and how.

mod prompt;
mod response;

use std::sync::Arc;
use std::time::Duration;

use ruvllm_engine::{HeldAdapter, PrefixUse, Recall, Sampling, Speculation, Tenant};

pub use prompt::{Message, Prompt, ToolCall};
pub use response::{Divergence, RecallUse, Response, Timings, Usage};

use crate::{OutputFormat, Tool, ToolChoice, Truncation};

/// What to generate, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub prompt: Prompt,
    /// Number of answers; the prompt is encoded once for all of them.
    pub choices: usize,
    /// The first answer is sampled with its seed, the second with the next seed, and so on.
    pub sampling: Sampling,
    /// Maximum number of tokens to generate; `None` is what the context holds.
    pub max_tokens: Option<usize>,
    /// Maximum number of tokens of prompt and answer, where that is less than the model's context.
    pub context: Option<usize>,
    /// Whether `max_tokens` is lowered to what the context has room for. Otherwise a request whose prompt leaves less room
    /// is refused.
    pub clamps_max_tokens: bool,
    /// Stop strings: texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Format that the answer must have; any text by default.
    pub output_format: Option<OutputFormat>,
    /// Tools that the model may call, in a conversation.
    pub tools: Tools,
    /// Maximum number of tokens that a model may reason before its answer; `None` is no limit. Holds only where the engine chooses
    /// tokens ([`Engine::chooses_tokens`](crate::Engine::chooses_tokens)).
    pub reasoning_budget: Option<usize>,
    /// Further variables for the chat template, such as `enable_thinking`.
    pub template_variables: serde_json::Map<String, serde_json::Value>,
    /// What happens to a prompt that leaves no room for the answer.
    pub truncation: Truncation,
    /// When to use speculative decoding. The answer is the same, sooner.
    pub speculation: Speculation,
    /// The tenant that asks. Tenants share the engine fairly, and never each other's cached prefixes.
    pub tenant: Tenant,
    /// Weights that are added to the model's for this request, from [`Adapters::hold`](crate::Adapters::hold). Cached prefixes are
    /// kept apart by adapter.
    pub adapter: Option<HeldAdapter>,
    /// Requests of a higher priority start first.
    pub priority: i8,
    /// Time for the whole answer, after which it ends with an error.
    pub timeout: Option<Duration>,
    /// Use of the prefix cache. The answer is the same where all KV pages have one format.
    pub prefix_use: PrefixUse,
    /// Whether the response carries embeddings of prompt and answer. The engine must keep hidden states.
    pub embeddings: bool,
    /// Whether the answer may be drawn with a memory of what was corrected, where the request's tenant has opted in to
    /// learning.
    pub may_recall: bool,
    /// That memory; filled in where the request is recorded.
    pub recall: Option<Arc<Recall>>,
    /// Session that this request continues or begins. Needs a memory.
    pub session: Option<String>,
    /// Parameters that the model's own defaults decide, or policies where there is a memory.
    pub unset: UnsetParams,
}

/// Parameters that a client did not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsetParams {
    pub temperature: bool,
    pub top_k: bool,
    pub top_p: bool,
    pub min_p: bool,
    pub repetition_penalty: bool,
    pub repetition_window: bool,
    pub max_tokens: bool,
    /// Nobody decides it: it is random.
    pub seed: bool,
}

impl UnsetParams {
    /// A client that set nothing.
    pub const ALL: Self = Self {
        temperature: true,
        top_k: true,
        top_p: true,
        min_p: true,
        repetition_penalty: true,
        repetition_window: true,
        max_tokens: true,
        seed: true,
    };
}

impl Request {
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            choices: 1,
            sampling: Sampling::default(),
            max_tokens: None,
            context: None,
            clamps_max_tokens: false,
            stop: Vec::new(),
            output_format: None,
            tools: Tools::default(),
            reasoning_budget: None,
            template_variables: serde_json::Map::new(),
            truncation: Truncation::default(),
            speculation: Speculation::default(),
            tenant: Tenant::default(),
            adapter: None,
            priority: 0,
            timeout: None,
            prefix_use: PrefixUse::default(),
            may_recall: true,
            recall: None,
            session: None,
            unset: UnsetParams::default(),
            embeddings: false,
        }
    }

    /// Returns the context of the request's sequence, in a model with this context.
    pub(crate) fn context_in(&self, context: usize) -> usize {
        self.context.map_or(context, |own| own.min(context))
    }

    /// Returns the number of tokens that truncation leaves room for. An answer that may be shorter gets a quarter of the
    /// context, so that a long limit does not drop the whole conversation.
    pub(crate) fn answer_room(&self, context: usize) -> usize {
        match self.max_tokens {
            Some(max_tokens) if self.clamps_max_tokens => max_tokens.min((context / 4).max(1)),
            max_tokens => max_tokens.unwrap_or(1),
        }
    }

    /// Returns the maximum number of tokens to generate after a prompt.
    pub(crate) fn max_tokens_after(&self, prompt_tokens: usize, context: usize) -> Option<usize> {
        // At least one, so that it is the prompt's length that is refused.
        let room = context.saturating_sub(prompt_tokens).max(1);
        self.max_tokens.map(|max_tokens| if self.clamps_max_tokens { max_tokens.min(room) } else { max_tokens })
    }
}

/// Tools that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    pub definitions: Vec<Tool>,
    pub choice: ToolChoice,
    /// Whether an answer may have several calls. By default if the model was trained to call tools: others repeat themselves.
    pub are_parallel: Option<bool>,
}

impl Default for Tools {
    fn default() -> Self {
        Self { definitions: Vec::new(), choice: ToolChoice::Auto, are_parallel: None }
    }
}

impl Tools {
    /// Returns the tools that the model is told of.
    pub(crate) fn offered(&self) -> &[Tool] {
        if self.choice == ToolChoice::None { &[] } else { &self.definitions }
    }
}
