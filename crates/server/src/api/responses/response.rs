//! `POST /v1/responses`: the response.

use std::collections::BTreeMap;

use ruvllm_runtime::Usage;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::request::{FlatTool, TextFormat, TruncationField};
use crate::api::logprobs::TokenLogprobs;
use crate::api::sections::Section;

/// An answer with the parameters of its request.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct ResponseObject {
    pub id: String,
    /// `response`
    pub object: &'static str,
    /// Unix time.
    pub created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`
    pub status: &'static str,
    /// Always false.
    pub background: bool,
    pub error: Option<ResponseFailure>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<usize>,
    pub metadata: BTreeMap<String, String>,
    pub model: String,
    pub output: Vec<OutputItem>,
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<String>,
    pub prompt_cache_key: Option<String>,
    pub safety_identifier: Option<String>,
    pub service_tier: &'static str,
    pub store: bool,
    pub temperature: f32,
    pub text: TextConfig,
    #[schema(value_type = Object)]
    pub tool_choice: Value,
    pub tools: Vec<FlatTool>,
    pub top_logprobs: usize,
    pub top_p: f32,
    pub truncation: TruncationField,
    pub usage: Option<ResponseUsage>,
    pub user: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseFailure {
    /// `server_error`
    pub code: &'static str,
    pub message: String,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct IncompleteDetails {
    /// `max_output_tokens`
    pub reason: &'static str,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct TextConfig {
    pub format: TextFormat,
}

/// A part of an answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    Message(OutputMessage),
    FunctionCall(OutputCall),
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutputMessage {
    pub id: String,
    /// `in_progress`, `completed` or `incomplete`
    pub status: &'static str,
    /// `assistant`
    pub role: &'static str,
    pub content: Vec<OutputPart>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    OutputText {
        text: String,
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        annotations: Vec<Value>,
        logprobs: Vec<TokenLogprobs>,
    },
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutputCall {
    pub id: String,
    /// Sent back with the output of the call.
    pub call_id: String,
    pub name: String,
    /// A JSON object, as text. It is cut off if the status is `incomplete`.
    pub arguments: String,
    /// `in_progress`, `completed` or `incomplete`
    pub status: &'static str,
}

/// Token usage of a response.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    pub input_tokens: usize,
    pub input_tokens_details: InputTokens,
    pub output_tokens: usize,
    pub output_tokens_details: OutputTokens,
    pub total_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct InputTokens {
    /// Prompt tokens that were cached.
    pub cached_tokens: usize,
    /// Always 0: caching costs nothing.
    pub cache_write_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct OutputTokens {
    /// Always 0.
    pub reasoning_tokens: usize,
}

/// Confirms that a response was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedResponse {
    pub id: String,
    /// `response`
    pub object: &'static str,
    pub deleted: bool,
}

impl OutputItem {
    pub(crate) fn of(section: &Section, id: &str, status: &'static str, logprobs: Vec<TokenLogprobs>) -> Self {
        let id = id.to_owned();
        match section {
            Section::Text(text) => {
                let content = vec![OutputPart::new(text, logprobs)];
                Self::Message(OutputMessage { id, status, role: "assistant", content })
            }
            Section::Call(call) => Self::FunctionCall(OutputCall {
                id,
                call_id: call.id.clone(),
                name: call.name.clone(),
                arguments: call.arguments.clone(),
                status,
            }),
        }
    }

    /// Returns the empty item that announces it.
    pub(crate) fn opening(section: &Section, id: &str) -> Self {
        let mut item = Self::of(&section.opening(), id, "in_progress", Vec::new());
        if let Self::Message(message) = &mut item {
            message.content.clear();
        }
        item
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Message(message) => &message.id,
            Self::FunctionCall(call) => &call.id,
        }
    }
}

impl OutputPart {
    pub(crate) fn new(text: &str, logprobs: Vec<TokenLogprobs>) -> Self {
        Self::OutputText { text: text.to_owned(), annotations: Vec::new(), logprobs }
    }
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokens { cached_tokens: usage.cached_tokens, cache_write_tokens: 0 },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokens { reasoning_tokens: 0 },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        }
    }
}
