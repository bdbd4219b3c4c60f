//! Fields that several endpoints have, and what they mean to the engine.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use ruvllm_runtime::{OutputFormat, Request, StopMatcher, closed};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;

/// Answers to one request at most, to all of its prompts together.
pub(crate) const COUNT_MAX: usize = 128;

/// The sampling of a request, from its fields. Both kinds of completions have the same ones; as one part of both (serde's
/// flatten) unknown fields could not be refused.
macro_rules! sampling_of {
    ($request:expr, $top_logprobs:expr) => {{
        let default = ruvllm_runtime::Sampling::default();
        ruvllm_runtime::Sampling {
            temperature: $request.temperature.unwrap_or(default.temperature),
            top_p: $request.top_p.unwrap_or(default.top_p),
            top_k: $request.top_k.unwrap_or(default.top_k),
            min_p: $request.min_p.unwrap_or(default.min_p),
            typical_p: $request.typical_p.unwrap_or(default.typical_p),
            repetition_penalty: $request.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: $request.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: $request.frequency_penalty.unwrap_or(default.frequency_penalty),
            logit_bias: $crate::api::fields::logit_bias($request.logit_bias.as_ref())?,
            top_logprobs: $top_logprobs,
            ..default
        }
    }};
}
pub(crate) use sampling_of;

/// What a request did not say, so that policies may.
macro_rules! left_open {
    ($request:expr, $max_tokens:expr) => {
        ruvllm_runtime::UnsetParams {
            temperature: $request.temperature.is_none(),
            top_p: $request.top_p.is_none(),
            max_tokens: $max_tokens.is_none(),
        }
    };
}
pub(crate) use left_open;

/// Texts that end the answer before them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub enum Stop {
    One(String),
    Several(Vec<String>),
}

/// The texts that end an answer, checked before anything is copied for each prompt.
pub(crate) fn stop(stop: Option<&Stop>) -> Result<Vec<String>, ApiError> {
    let texts = match stop {
        None => &[],
        Some(Stop::One(text)) => std::slice::from_ref(text),
        Some(Stop::Several(texts)) => &texts[..],
    };
    StopMatcher::check(texts).map_err(|error| ApiError::invalid_param("stop", error.to_string()))?;
    Ok(texts.to_vec())
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether a last chunk tells how many tokens the request took.
    pub include_usage: Option<bool>,
    /// Chunks are never padded: only false is accepted.
    pub include_obfuscation: Option<bool>,
}

/// What the answer must look like.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResponseFormat {
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema {
        json_schema: JsonSchemaField,
    },
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "name and description are for people; strict makes no difference, as answers always keep to schemas"
)]
pub struct JsonSchemaField {
    pub name: Option<String>,
    pub description: Option<String>,
    #[schema(value_type = Object)]
    pub schema: Value,
    /// Answers always keep to the schema, whatever this says.
    pub strict: Option<bool>,
}

/// A grammar, in one of two forms.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a GBNF grammar as text, or an object such as {\"type\": \"lark\", \"grammar\": \"...\"}"
)]
pub enum GrammarField {
    Gbnf(String),
    Typed(TypedGrammar),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TypedGrammar {
    #[serde(rename = "type")]
    pub kind: GrammarKind,
    pub grammar: String,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrammarKind {
    Gbnf,
    Lark,
}

/// The one shape that was asked for, if any.
pub(crate) fn shape(
    format: Option<&ResponseFormat>,
    grammar: Option<&GrammarField>,
    regex: Option<&str>,
) -> Result<Option<OutputFormat>, ApiError> {
    let by_format = format.and_then(|format| match format {
        ResponseFormat::Text => None,
        ResponseFormat::JsonObject => Some(OutputFormat::JsonObject),
        ResponseFormat::JsonSchema { json_schema } => Some(OutputFormat::JsonSchema(closed(&json_schema.schema))),
    });
    let by_grammar = grammar.map(|grammar| match grammar {
        GrammarField::Gbnf(text) => OutputFormat::Gbnf(text.clone()),
        GrammarField::Typed(TypedGrammar { kind: GrammarKind::Gbnf, grammar }) => OutputFormat::Gbnf(grammar.clone()),
        GrammarField::Typed(TypedGrammar { kind: GrammarKind::Lark, grammar }) => OutputFormat::Lark(grammar.clone()),
    });
    let by_regex = regex.map(|regex| OutputFormat::Regex(regex.to_owned()));
    let mut given = [("response_format", by_format), ("grammar", by_grammar), ("regex", by_regex)]
        .into_iter()
        .filter_map(|(field, shape)| Some((field, shape?)));
    let first = given.next();
    if let (Some((first, _)), Some((second, _))) = (&first, given.next()) {
        return Err(ApiError::invalid_param(second, format!("{second} cannot be combined with {first}")));
    }
    Ok(first.map(|(_, shape)| shape))
}

/// Which field a shape came from.
pub(crate) fn field_of(shape: &OutputFormat) -> &'static str {
    match shape {
        OutputFormat::JsonObject | OutputFormat::JsonSchema(_) => "response_format",
        OutputFormat::Regex(_) => "regex",
        OutputFormat::Gbnf(_) | OutputFormat::Lark(_) => "grammar",
        OutputFormat::ToolCalls(_) => "tools",
    }
}

/// How many answers are wanted; 1 if nothing is said.
pub(crate) fn count(field: &str, count: Option<usize>) -> Result<usize, ApiError> {
    match count.unwrap_or(1) {
        count @ 1..=COUNT_MAX => Ok(count),
        got => Err(ApiError::invalid_param(field, format!("{field} is {got}; it must be between 1 and {COUNT_MAX}"))),
    }
}

/// The limit, given under its new name or its old one.
pub(crate) fn max_tokens(new: Option<usize>, old: Option<usize>) -> Result<Option<usize>, ApiError> {
    match (new, old) {
        (Some(new), Some(old)) if new != old => Err(ApiError::invalid_param(
            "max_tokens",
            format!("max_tokens is {old} and max_completion_tokens {new}; they mean the same, so give one of them"),
        )),
        (new, old) => Ok(new.or(old)),
    }
}

/// Keys are token ids, in quotes since JSON wants that.
pub(crate) fn logit_bias(given: Option<&BTreeMap<String, f32>>) -> Result<BTreeMap<u32, f32>, ApiError> {
    let entry = |(token, bias): (&String, &f32)| match token.parse() {
        Ok(token) => Ok((token, *bias)),
        Err(_) => {
            let message = format!("logit_bias has the key {token:?}; keys are token ids, such as \"42\"");
            Err(ApiError::invalid_param("logit_bias", message))
        }
    };
    given.into_iter().flatten().map(entry).collect()
}

/// A request for so many answers. Without a seed it gets one; with one, the first answer has it and the others follow.
pub(crate) fn with_seed(mut request: Request, seed: Option<i64>, choices: usize) -> Request {
    request.choices = choices;
    request.sampling.seed = seed.map_or_else(|| RandomState::new().hash_one(0u8), i64::cast_unsigned);
    request
}

pub(crate) fn refuse_store(store: Option<bool>) -> Result<(), ApiError> {
    match store {
        Some(true) => Err(ApiError::invalid_param("store", "store is not supported: this server stores no answers")),
        _ => Ok(()),
    }
}

pub(crate) fn check_service_tier(tier: Option<&str>) -> Result<(), ApiError> {
    match tier {
        None | Some("auto" | "default") => Ok(()),
        Some(tier) => {
            let message = format!("service_tier is {tier:?}; there is one tier here: auto or default");
            Err(ApiError::invalid_param("service_tier", message))
        }
    }
}

pub(crate) fn check_stream_options(stream: Option<bool>, options: Option<&StreamOptions>) -> Result<(), ApiError> {
    match options {
        Some(_) if stream != Some(true) => {
            Err(ApiError::invalid_param("stream_options", "stream_options needs stream: true"))
        }
        Some(StreamOptions { include_obfuscation: Some(true), .. }) => Err(ApiError::invalid_param(
            "stream_options.include_obfuscation",
            "include_obfuscation is not supported; leave it out",
        )),
        _ => Ok(()),
    }
}
