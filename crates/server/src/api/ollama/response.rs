//! `POST /api/chat` and `POST /api/generate`: the responses, whole or in lines.

use ruvllm_runtime::{FinishReason, Response, ToolCall};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::stamp;
use super::timing::{Clock, Durations};
use crate::api::logprobs::TokenLogprobs;

/// An answer in a conversation, or a part of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaChatResponse {
    #[serde(flatten)]
    pub head: Head,
    pub message: OllamaAnswer,
    #[serde(flatten)]
    pub tail: Tail,
}

/// An answer to a prompt, or a part of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GenerateResponse {
    #[serde(flatten)]
    pub head: Head,
    pub response: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The conversation so far, to be sent with the next prompt. Only in the last line, and not after long prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<u32>>,
    #[serde(flatten)]
    pub tail: Tail,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Head {
    pub model: String,
    /// RFC 3339.
    pub created_at: String,
}

/// What ends every line.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Tail {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprobs>,
    pub done: bool,
    /// `stop`, `length`, `load` or `unload`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    #[serde(flatten)]
    pub durations: Option<Durations>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaAnswer {
    pub role: &'static str,
    pub content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<OllamaAnswerCall>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaAnswerCall {
    pub id: String,
    pub function: OllamaAnswerFunction,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaAnswerFunction {
    pub index: usize,
    pub name: String,
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
}

/// What a line says.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub text: String,
    pub thinking: String,
    pub calls: Vec<OllamaAnswerCall>,
}

impl Said {
    /// All of an answer.
    pub(super) fn of(response: &Response) -> Self {
        Self { text: response.text.clone(), thinking: response.reasoning.clone(), calls: calls(response, 0) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }
}

impl Head {
    pub(super) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), created_at: stamp::now() }
    }
}

impl Tail {
    /// The end of an answer.
    pub(super) fn of(response: &Response, clock: &Clock) -> Self {
        let reason = if response.finish_reason == Some(FinishReason::Length) { "length" } else { "stop" };
        Self { done: true, done_reason: Some(reason), durations: Some(clock.durations(response)), ..Self::default() }
    }

    /// The end of a request that only loads or unloads.
    pub(super) fn without_answer(reason: &'static str) -> Self {
        Self { done: true, done_reason: Some(reason), ..Self::default() }
    }
}

impl OllamaChatResponse {
    pub(super) fn new(model: &str, said: Said, tail: Tail) -> Self {
        let Said { text, thinking, calls } = said;
        let thinking = Some(thinking).filter(|text| !text.is_empty());
        let message = OllamaAnswer { role: "assistant", content: text, thinking, tool_calls: calls };
        Self { head: Head::new(model), message, tail }
    }
}

impl GenerateResponse {
    pub(super) fn new(model: &str, said: Said, tail: Tail) -> Self {
        let thinking = Some(said.thinking).filter(|text| !text.is_empty());
        Self { head: Head::new(model), response: said.text, thinking, context: None, tail }
    }
}

/// Returns the tool calls of an answer from `first` on. One that was cut off has no arguments and is left out.
pub(super) fn calls(response: &Response, first: usize) -> Vec<OllamaAnswerCall> {
    let call = |(index, call): (usize, &ToolCall)| {
        let arguments = serde_json::from_str(&call.arguments).ok()?;
        let function = OllamaAnswerFunction { index, name: call.name.clone(), arguments };
        Some(OllamaAnswerCall { id: call.id.clone(), function })
    };
    response.tool_calls.iter().enumerate().skip(first).filter_map(call).collect()
}
