//! `POST /v1/completions`: what is asked, checked and put into the runtime's words.

use std::collections::BTreeMap;

use ruvllm_runtime::{Prompt, Request};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::api::fields::{self, GrammarField, ResponseFormat, Stop, StreamOptions};
use crate::error::ApiError;

/// Tokens of an answer when nothing else is said, as with OpenAI.
const MAX_TOKENS_DEFAULT: usize = 16;

/// Texts to continue, without the model's chat format. Parameters that are not listed here are refused by name.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// A model of this server; `GET /v1/models` lists them.
    #[schema(example = "smollm2")]
    pub model: String,
    pub prompt: PromptField,
    /// Tokens of each answer at most; 16 by default.
    #[schema(minimum = 1)]
    pub max_tokens: Option<usize>,
    /// How many answers to generate for each prompt.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<usize>,
    /// Only the same as `n` is accepted: none is generated to be thrown away.
    pub best_of: Option<usize>,
    /// Whether the answer begins with the prompt.
    pub echo: Option<bool>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub stop: Option<Stop>,
    pub response_format: Option<ResponseFormat>,
    /// A grammar that the answer must follow: GBNF as text, or with its kind.
    pub grammar: Option<GrammarField>,
    /// A regular expression that the whole answer must match.
    pub regex: Option<String>,
    /// How many of the likeliest tokens to report with each token.
    #[schema(maximum = 20)]
    pub logprobs: Option<usize>,
    /// 0 always takes the likeliest token; 0.8 by default.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    /// 0.95 by default; 1 is off.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Only the likeliest tokens; 40 by default, 0 is off.
    pub top_k: Option<usize>,
    /// 0.05 by default; 0 is off.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub typical_p: Option<f32>,
    #[schema(minimum = 0.01, maximum = 100)]
    pub repetition_penalty: Option<f32>,
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Token ids with what is added to their scores, -100 to 100.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// The same seed gives the same answer.
    pub seed: Option<i64>,
    /// Whose request this is, for the log.
    pub user: Option<String>,
    /// Requests of a lower priority wait for others. Above 0 needs a key with the scope admin.
    pub priority: Option<i8>,
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
    /// What the engine is asked, for each prompt.
    pub(crate) fn requests(&self) -> Result<Vec<Request>, ApiError> {
        let n = self.check()?;
        let (prompts, answers_max) = (self.prompt.count(), fields::COUNT_MAX);
        if prompts == 0 {
            return Err(ApiError::invalid_param("prompt", "prompt has no texts; give one at least"));
        }
        // Before anything is copied for each of them.
        if prompts * n > answers_max {
            let message = format!(
                "prompt has {prompts} texts and n is {n}, which makes {} answers; at most {answers_max} are given to a request",
                prompts * n
            );
            return Err(ApiError::invalid_param(if prompts > answers_max { "prompt" } else { "n" }, message));
        }
        let request = Request {
            sampling: fields::sampling_of!(self, self.logprobs),
            max_tokens: Some(self.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT)),
            stop: fields::stop(self.stop.as_ref())?,
            output_format: fields::shape(self.response_format.as_ref(), self.grammar.as_ref(), self.regex.as_deref())?,
            priority: self.priority.unwrap_or(0),
            unset: fields::left_open!(self, self.max_tokens),
            ..Request::new(Prompt::Tokens(Vec::new()))
        };
        let of_prompt = |prompt| fields::with_seed(Request { prompt, ..request.clone() }, self.seed, n);
        Ok(self.prompt.prompts().into_iter().map(of_prompt).collect())
    }

    /// Refuses what does not go together; gives the number of answers to each prompt.
    fn check(&self) -> Result<usize, ApiError> {
        let n = fields::count("n", self.n)?;
        if let Some(best_of) = self.best_of.filter(|best_of| *best_of != n) {
            let message = format!("best_of is {best_of} and n is {n}; only equal values are supported");
            return Err(ApiError::invalid_param("best_of", message));
        }
        if self.echo == Some(true) && self.logprobs.is_some() {
            let message = "echo cannot be combined with logprobs: probabilities of the prompt are not supported";
            return Err(ApiError::invalid_param("echo", message));
        }
        fields::check_stream_options(self.stream, self.stream_options.as_ref())?;
        Ok(n)
    }

    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage.unwrap_or(false))
    }
}
