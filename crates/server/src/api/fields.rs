//! Fields that several endpoints share, and their conversion for the engine.

use std::hash::{BuildHasher, RandomState};

use ruvllm_runtime::{OutputFormat, Request, StopMatcher, Strictness, UnsetParams, closed};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// Maximum number of answers per request, to all of its prompts together.
pub(crate) const COUNT_MAX: usize = 128;

/// Returns the parameters that a request leaves unset, so that its model or policies may set them. Others cannot be set.
pub(crate) fn unset_params(temperature: Option<f32>, top_p: Option<f32>, max_tokens: Option<usize>) -> UnsetParams {
    UnsetParams {
        temperature: temperature.is_none(),
        top_p: top_p.is_none(),
        max_tokens: max_tokens.is_none(),
        ..UnsetParams::ALL
    }
}

/// Stop strings: the answer ends before them.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub enum Stop {
    One(String),
    Several(Vec<String>),
}

/// Returns the stop strings, checked before anything is copied for each prompt.
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
pub struct StreamOptions {
    /// Whether a last chunk reports the token usage of the request.
    pub include_usage: Option<bool>,
    /// Has no effect: chunks are never padded.
    pub include_obfuscation: Option<bool>,
}

/// Format of the answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that follows a schema.
    JsonSchema {
        json_schema: JsonSchemaField,
    },
}

#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "name and description are for people")]
pub struct JsonSchemaField {
    pub name: Option<String>,
    pub description: Option<String>,
    #[schema(value_type = Object)]
    pub schema: Value,
    /// Whether a schema that cannot be enforced completely is refused.
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

/// Returns the requested output format, if any.
pub(crate) fn shape(
    format: Option<&ResponseFormat>,
    grammar: Option<&GrammarField>,
    regex: Option<&str>,
) -> Result<Option<OutputFormat>, ApiError> {
    let by_format = format.and_then(|format| match format {
        ResponseFormat::Text => None,
        ResponseFormat::JsonObject => Some(OutputFormat::JsonObject),
        ResponseFormat::JsonSchema { json_schema } => Some(OutputFormat::JsonSchema {
            schema: closed(&json_schema.schema),
            strictness: Strictness::of_flag(json_schema.strict),
        }),
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

/// Returns the field that an output format came from.
pub(crate) fn field_of(shape: &OutputFormat) -> &'static str {
    match shape {
        OutputFormat::JsonObject | OutputFormat::JsonSchema { .. } => "response_format",
        OutputFormat::Regex(_) => "regex",
        OutputFormat::Gbnf(_) | OutputFormat::Lark(_) => "grammar",
        OutputFormat::ToolCalls(_) => "tools",
    }
}

/// Returns the context that a request wants for itself.
pub(crate) fn context(field: &str, tokens: Option<i64>) -> Result<Option<usize>, ApiError> {
    /// Longer ones are a mistake: no model has them.
    const CONTEXT_MAX: i64 = 1 << 27;
    match tokens {
        Some(tokens) if !(1..=CONTEXT_MAX).contains(&tokens) => {
            let message = format!("{field} is {tokens}; it must be between 1 and {CONTEXT_MAX}");
            Err(ApiError::invalid_param(field, message))
        }
        tokens => Ok(tokens.and_then(|tokens| usize::try_from(tokens).ok())),
    }
}

/// Notes a context that is larger than the one the model is loaded with: loading it again would cost all who use it.
pub(crate) fn note_context(
    field: &str,
    wanted: Option<usize>,
    loaded: usize,
    ignored: &IgnoredParams,
) -> Result<(), ApiError> {
    match wanted {
        Some(tokens) if tokens > loaded => {
            ignored.note(field, "it is larger than the context of the loaded model (--context)")
        }
        _ => Ok(()),
    }
}

/// Returns the number of answers; 1 by default.
pub(crate) fn count(field: &str, count: Option<usize>) -> Result<usize, ApiError> {
    match count.unwrap_or(1) {
        count @ 1..=COUNT_MAX => Ok(count),
        got => Err(ApiError::invalid_param(field, format!("{field} is {got}; it must be between 1 and {COUNT_MAX}"))),
    }
}

/// Returns the limit, given under its new name or its old one.
pub(crate) fn max_tokens(new: Option<usize>, old: Option<usize>) -> Result<Option<usize>, ApiError> {
    match (new, old) {
        (Some(new), Some(old)) if new != old => Err(ApiError::invalid_param(
            "max_tokens",
            format!("max_tokens is {old} and max_completion_tokens {new}; they mean the same, so give only one"),
        )),
        (new, old) => Ok(new.or(old)),
    }
}

/// Sets the number of answers and the seed, which is random by default. The first answer has the seed, the others count
/// up.
pub(crate) fn with_seed(mut request: Request, seed: Option<i64>, choices: usize) -> Request {
    request.choices = choices;
    request.unset.seed = seed.is_none();
    request.sampling.seed = seed.map_or_else(|| RandomState::new().hash_one(0u8), i64::cast_unsigned);
    request
}

/// Notes a tier other than the only one.
pub(crate) fn note_service_tier(tier: Option<&str>, only: [&str; 2], ignored: &IgnoredParams) -> Result<(), ApiError> {
    match tier {
        Some(tier) if !only.contains(&tier) => ignored.note("service_tier", "there is only one tier"),
        _ => Ok(()),
    }
}

pub(crate) fn note_stream_options(
    stream: Option<bool>,
    options: Option<&StreamOptions>,
    ignored: &IgnoredParams,
) -> Result<(), ApiError> {
    match options {
        Some(_) if stream != Some(true) => ignored.note("stream_options", "it needs stream: true"),
        Some(StreamOptions { include_obfuscation: Some(true), .. }) => {
            ignored.note("stream_options.include_obfuscation", "chunks are never padded")
        }
        _ => Ok(()),
    }
}
