//! `POST /v1/completions`: the request, its validation and conversion for the runtime.

use ruvllm_runtime::{Prompt, Request};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::api::fields::{self, GrammarField, ResponseFormat, Stop, StreamOptions};
use crate::api::sampling_fields;
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// Default number of generated tokens, the same as OpenAI's.
const MAX_TOKENS_DEFAULT: usize = 16;

sampling_fields::with_sampling_fields! {
    /// Texts to continue, without the model's chat template. Unknown parameters are ignored and named in the header `x-ruvllm-ignored`.
    #[derive(Debug, Default, Deserialize, ToSchema)]
        pub struct CompletionRequest {
        /// A model of this server; `GET /v1/models` lists them. `auto` leaves the choice to the server.
        #[schema(example = "smollm2")]
        pub model: String,
        pub prompt: PromptField,
        /// Maximum number of generated tokens per answer; 16 by default.
        #[schema(minimum = 1)]
        pub max_tokens: Option<usize>,
        /// Number of answers to generate for each prompt.
        #[schema(minimum = 1, maximum = 128)]
        pub n: Option<usize>,
        /// Only the same value as `n` is accepted: no answer is generated and discarded.
        pub best_of: Option<usize>,
        /// Whether the answer starts with the prompt.
        pub echo: Option<bool>,
        pub stream: Option<bool>,
        pub stream_options: Option<StreamOptions>,
        pub stop: Option<Stop>,
        pub response_format: Option<ResponseFormat>,
        /// A grammar that the answer must follow: GBNF as text, or an object with its type.
        pub grammar: Option<GrammarField>,
        /// A regular expression that the whole answer must match.
        pub regex: Option<String>,
        /// Number of the most likely tokens to report at each position.
        #[schema(maximum = 20)]
        pub logprobs: Option<usize>,
        ..sampling,
    }
}

/// One text or several, as text or as token ids.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, a list of texts, token ids, or a list of lists of token ids")]
pub enum PromptField {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

impl Default for PromptField {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl PromptField {
    fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }

    pub(crate) fn prompts(&self) -> Vec<Prompt> {
        match self {
            Self::Text(text) => vec![Prompt::Text(text.clone())],
            Self::Texts(texts) => texts.iter().cloned().map(Prompt::Text).collect(),
            Self::Tokens(tokens) => vec![Prompt::Tokens(tokens.clone())],
            Self::TokenLists(lists) => lists.iter().cloned().map(Prompt::Tokens).collect(),
        }
    }
}

impl CompletionRequest {
    /// Converts each prompt to a request for the engine.
    pub(crate) fn requests(&self, ignored: &IgnoredParams) -> Result<Vec<Request>, ApiError> {
        let n = self.check(ignored)?;
        let (prompts, answers_max) = (self.prompt.count(), fields::COUNT_MAX);
        if prompts == 0 {
            return Err(ApiError::invalid_param("prompt", "prompt has no texts; give at least one"));
        }
        // Checked before anything is copied for each of them.
        if prompts * n > answers_max {
            let message = format!(
                "prompt has {prompts} texts and n is {n}, which makes {} answers; a request may have up to \
                 {answers_max}",
                prompts * n
            );
            return Err(ApiError::invalid_param(if prompts > answers_max { "prompt" } else { "n" }, message));
        }
        let request = Request {
            sampling: self.sampling(self.logprobs)?,
            max_tokens: Some(self.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT)),
            context: fields::context("num_ctx", self.num_ctx)?,
            clamps_max_tokens: true,
            stop: fields::stop(self.stop.as_ref())?,
            output_format: fields::shape(self.response_format.as_ref(), self.grammar.as_ref(), self.regex.as_deref())?,
            priority: self.priority.unwrap_or(0),
            may_recall: self.recall.unwrap_or(true),
            unset: self.unset(self.max_tokens),
            ..Request::new(Prompt::Tokens(Vec::new()))
        };
        let of_prompt = |prompt| fields::with_seed(Request { prompt, ..request.clone() }, self.seed, n);
        Ok(self.prompt.prompts().into_iter().map(of_prompt).collect())
    }

    /// Refuses invalid combinations; returns the number of answers per prompt.
    fn check(&self, ignored: &IgnoredParams) -> Result<usize, ApiError> {
        let n = fields::count("n", self.n)?;
        if let Some(best_of) = self.best_of.filter(|best_of| *best_of != n) {
            let message = format!("best_of is {best_of} and n is {n}; only equal values are supported");
            return Err(ApiError::invalid_param("best_of", message));
        }
        if self.echo == Some(true) && self.logprobs.is_some() {
            let message = "echo cannot be combined with logprobs: probabilities of the prompt are not supported";
            return Err(ApiError::invalid_param("echo", message));
        }
        fields::note_stream_options(self.stream, self.stream_options.as_ref(), ignored)?;
        Ok(n)
    }

    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage.unwrap_or(false))
    }
}
