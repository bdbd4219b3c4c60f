//! What a caller asks of the engine, and why it may be refused.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ruvllm_runner::{HeldAdapter, TokenId};

use crate::{Recall, Sampling, SamplingError, Speculation};

/// Names a sequence from its submission to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(crate) u64);

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub prompt: Vec<TokenId>,
    pub sampling: Sampling,
    /// Maximum number of tokens to generate; `None` is as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Maximum length of the sequence, where that is less than the model's context.
    pub context: Option<usize>,
    /// Tokens that end the text, such as the model's end of turn.
    pub end_tokens: Vec<TokenId>,
    pub speculation: Speculation,
    pub tenant: Tenant,
    /// Weights that are added to the model's for this request.
    pub adapter: Option<HeldAdapter>,
    /// Requests of a higher priority start first, and may make lower ones pause.
    pub priority: i8,
    /// When nobody waits for the answer any more, by the time given to `Core::set_time`.
    pub deadline: Option<Duration>,
    pub prefix_use: PrefixUse,
    /// Tokens of the prompt over which hidden states are averaged, where these are wanted. The first of a prompt never counts.
    pub states_of: Option<Range<usize>>,
    /// A memory whose suggestions are mixed with the model's distribution, before all else that sampling does.
    pub recall: Option<Arc<Recall>>,
}

impl Request {
    /// A greedy continuation of `prompt` as far as the context goes.
    pub fn new(prompt: Vec<TokenId>) -> Self {
        Self {
            prompt,
            sampling: Sampling::greedy(),
            max_tokens: None,
            context: None,
            end_tokens: Vec::new(),
            speculation: Speculation::default(),
            tenant: Tenant::default(),
            adapter: None,
            priority: 0,
            deadline: None,
            prefix_use: PrefixUse::default(),
            states_of: None,
            recall: None,
        }
    }
}

/// On whose behalf a request is made. Tenants share the engine's time fairly, and never each other's cached prefixes
/// unless the engine is configured to share them. The name may be a path, such as `acme/search`; quotas of memory are found along it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(Arc<str>);

impl Tenant {
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Tenant {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    /// The only one, where there are no others.
    fn default() -> Self {
        Self::new("")
    }
}

/// What a request makes of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixUse {
    /// Whether it takes what others have computed and leaves them what it computes.
    pub enabled: bool,
    /// Cached prefixes that are shorter are not taken.
    pub tokens_min: usize,
}

impl PrefixUse {
    pub const OFF: Self = Self { enabled: false, tokens_min: 0 };
}

impl Default for PrefixUse {
    fn default() -> Self {
        Self { enabled: true, tokens_min: 0 }
    }
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token was chosen, or nothing can follow by the constraint.
    Stop,
    /// `max_tokens` were generated, or the context is full.
    Length,
}

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SubmitError {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("token {token} of the prompt is not in the vocabulary of {vocabulary}")]
    NoSuchToken { token: TokenId, vocabulary: usize },
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}, one of which must be left for the answer; \
         shorten the prompt or raise the context"
    )]
    PromptTooLong { prompt: usize, context: usize },
    #[error("max_tokens is 0; it must be at least 1")]
    NothingToGenerate,
    #[error(
        "the prompt has {prompt} tokens and max_tokens is {max_tokens}, together more than the context of {context}; \
         lower max_tokens or raise the context"
    )]
    TooLong { prompt: usize, max_tokens: usize, context: usize },
    #[error("{needed} KV pages are needed and {pages} can be had; shorten the request or raise the KV budget")]
    TooLargeForCache { needed: usize, pages: usize },
    #[error("{0} requests are waiting already; try again later")]
    QueueFull(usize),
    #[error("{waiting} of your requests are waiting already, as many as others leave room for; try again later")]
    TenantQueueFull { waiting: usize },
    #[error(
        "hidden states are wanted, and this engine does not keep them; build it so that it does, on a backend that \
         gives them"
    )]
    NoStates,
    #[error("the runner has no such adapter; load it first")]
    NoSuchAdapter,
    #[error("the device is lost ({0}); load the model again")]
    DeviceLost(String),
    #[error(
        "{field} has no effect on this model: its backend chooses tokens by itself; leave it out, or use another backend"
    )]
    ChoosesTokens { field: &'static str },
    #[error("this model's backend chooses tokens by itself and gives no logits, which this needs; use another backend")]
    NoLogits,
    #[error("{0}")]
    Prompt(String),
    #[error("the thread for grammars cannot be started: {0}")]
    NoThread(String),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}
