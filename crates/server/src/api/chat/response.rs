//! `POST /v1/chat/completions`: the response, whole or in chunks.

use ruvllm_runtime::Tokenizer;
use ruvllm_runtime::{FinishReason, Piece, Response, ToolCall};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::logprobs::TokenLogprobs;
use crate::api::usage::{TimingsField, UsageField};

/// Identifies an answer in all of its chunks.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Envelope {
    pub id: String,
    /// `chat.completion`, or `chat.completion.chunk` in a stream
    pub object: &'static str,
    /// Unix time.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: &'static str,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    #[serde(flatten)]
    pub envelope: Envelope,
    pub choices: Vec<ChatChoice>,
    pub usage: UsageField,
    pub timings: TimingsField,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub index: usize,
    pub message: AnswerMessage,
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`
    pub finish_reason: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerMessage {
    pub role: &'static str,
    pub content: Option<String>,
    /// What the model wrote for itself before, if it reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    pub refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<AnswerCall>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerCall {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub function: AnswerFunction,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerFunction {
    pub name: String,
    pub arguments: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    pub content: Vec<TokenLogprobs>,
    pub refusal: Option<Vec<TokenLogprobs>>,
}

/// A piece of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunk<'a> {
    #[serde(flatten)]
    pub envelope: &'a Envelope,
    pub choices: Vec<ChunkChoice>,
    /// With `stream_options.include_usage`: null except in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageField>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChunkChoice {
    pub index: usize,
    pub delta: Delta,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<&'static str>,
}

/// The new part.
#[derive(Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CallDelta>,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct CallDelta {
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: FunctionDelta,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

impl ChatChoice {
    pub(crate) fn new(index: usize, response: &Response, tokenizer: &Tokenizer, wants_logprobs: bool) -> Self {
        let calls: Vec<AnswerCall> = response.tool_calls.iter().map(AnswerCall::of).collect();
        let has_content = calls.is_empty() || !response.text.is_empty();
        let logprobs =
            wants_logprobs.then(|| ChatLogprobs { content: TokenLogprobs::of(response, 0, tokenizer), refusal: None });
        let message = AnswerMessage {
            role: "assistant",
            content: has_content.then(|| response.text.clone()),
            reasoning_content: (!response.reasoning.is_empty()).then(|| response.reasoning.clone()),
            refusal: None,
            tool_calls: calls,
        };
        Self { index, message, logprobs, finish_reason: finish_reason(response) }
    }
}

impl AnswerCall {
    fn of(call: &ToolCall) -> Self {
        let ToolCall { id, name, arguments } = call.clone();
        Self { id, kind: "function", function: AnswerFunction { name, arguments } }
    }
}

impl Delta {
    /// The start of every answer.
    pub(crate) fn first() -> Self {
        Self { role: Some("assistant"), content: Some(String::new()), ..Self::default() }
    }

    pub(crate) fn of(piece: Piece) -> Self {
        let call = |index, id: Option<String>, name, arguments| CallDelta {
            index,
            kind: id.is_some().then_some("function"),
            id,
            function: FunctionDelta { name, arguments },
        };
        match piece {
            Piece::Reasoning(text) => Self { reasoning_content: Some(text), ..Self::default() },
            Piece::Text(text) if text.is_empty() => Self::default(),
            Piece::Text(text) => Self { content: Some(text), ..Self::default() },
            Piece::ToolCall { index, id, name } => {
                Self { tool_calls: vec![call(index, Some(id), Some(name), String::new())], ..Self::default() }
            }
            Piece::Arguments { index, text } => {
                Self { tool_calls: vec![call(index, None, None, text)], ..Self::default() }
            }
        }
    }
}

/// Returns why an answer ended, in OpenAI's terms.
pub(crate) fn finish_reason(response: &Response) -> &'static str {
    match response.finish_reason {
        Some(FinishReason::Length) => "length",
        _ if !response.tool_calls.is_empty() => "tool_calls",
        _ => "stop",
    }
}
