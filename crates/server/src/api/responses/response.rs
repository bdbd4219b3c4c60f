//! `POST /v1/responses`: the response.

use std::collections::BTreeMap;

use ruvllm_runtime::{ToolCall, Usage};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::request::{TextFormat, TruncationField};
use super::tools::{CUSTOM_INPUT, CallKind, OfferedTools};
use crate::api::logprobs::TokenLogprobs;
use crate::api::sections::Section;
use crate::api::signature::Signature;

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
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
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
    Reasoning(OutputReasoning),
    Message(OutputMessage),
    FunctionCall(OutputCall),
    CustomToolCall(OutputCustomCall),
    LocalShellCall(OutputShellCall),
}

/// What the model wrote for itself before its answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutputReasoning {
    pub id: String,
    /// Always empty: the models of this server do not summarise.
    #[schema(value_type = Vec<Object>)]
    pub summary: Vec<Value>,
    pub content: Vec<ReasoningPart>,
    /// The text again, signed: sent back with the next request, it proves that this server wrote it.
    pub encrypted_content: String,
    /// `in_progress`, `completed` or `incomplete`
    pub status: &'static str,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ReasoningPart {
    ReasoningText { text: String },
}

/// A call of a tool whose input is text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutputCustomCall {
    pub id: String,
    pub call_id: String,
    pub name: String,
    pub input: String,
    pub status: &'static str,
}

/// A command that the model wants the client to run.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutputShellCall {
    pub id: String,
    pub call_id: String,
    #[schema(value_type = Object)]
    pub action: Value,
    pub status: &'static str,
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
    /// The namespace that the tool belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
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
    /// Tokens of the reasoning before the answer.
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
    pub(crate) fn of(
        section: &Section,
        id: &str,
        status: &'static str,
        logprobs: Vec<TokenLogprobs>,
        tools: &OfferedTools,
    ) -> Self {
        let id = id.to_owned();
        match section {
            Section::Reasoning(text) => Self::Reasoning(OutputReasoning {
                id,
                summary: Vec::new(),
                content: vec![ReasoningPart::ReasoningText { text: text.clone() }],
                encrypted_content: Signature::seal(text),
                status,
            }),
            Section::Text(text) => {
                let content = vec![OutputPart::new(text, logprobs)];
                Self::Message(OutputMessage { id, status, role: "assistant", content })
            }
            Section::Call(call) => Self::of_call(call.clone(), tools.kind(call), id, status),
        }
    }

    fn of_call(call: ToolCall, kind: CallKind, id: String, status: &'static str) -> Self {
        let ToolCall { id: call_id, name, arguments } = call;
        let (name, namespace) = match kind {
            CallKind::Function => (name, None),
            CallKind::Namespaced { namespace, name } => (name, Some(namespace)),
            CallKind::Custom => {
                let input = parsed(&arguments).get(CUSTOM_INPUT).and_then(Value::as_str).unwrap_or_default().to_owned();
                return Self::CustomToolCall(OutputCustomCall { id, call_id, name, input, status });
            }
            CallKind::LocalShell => {
                let mut action = parsed(&arguments);
                action["type"] = "exec".into();
                return Self::LocalShellCall(OutputShellCall { id, call_id, action, status });
            }
        };
        Self::FunctionCall(OutputCall { id, call_id, name, namespace, arguments, status })
    }

    /// Returns the empty item that announces it.
    pub(crate) fn opening(section: &Section, id: &str, tools: &OfferedTools) -> Self {
        let mut item = Self::of(&section.opening(), id, "in_progress", Vec::new(), tools);
        match &mut item {
            Self::Message(message) => message.content.clear(),
            Self::Reasoning(reasoning) => {
                reasoning.content.clear();
                reasoning.encrypted_content.clear();
            }
            _ => {}
        }
        item
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Reasoning(reasoning) => &reasoning.id,
            Self::Message(message) => &message.id,
            Self::FunctionCall(call) => &call.id,
            Self::CustomToolCall(call) => &call.id,
            Self::LocalShellCall(call) => &call.id,
        }
    }
}

/// Returns the arguments of a call; none if the answer was cut off in them.
fn parsed(arguments: &str) -> Value {
    serde_json::from_str(arguments).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
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
            output_tokens_details: OutputTokens { reasoning_tokens: usage.reasoning_tokens },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        }
    }
}
