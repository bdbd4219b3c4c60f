//! `POST /v1/messages`: the response.

use ruvllm_runtime::{FinishReason, Response, ToolCall, Usage};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::api::sections::{Section, Sections};
use crate::api::signature::Signature;

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageObject {
    pub id: String,
    /// `message`
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `assistant`
    pub role: &'static str,
    pub model: String,
    /// Empty if the model generated nothing. A call that `max_tokens` or a stop sequence cut off is omitted: its input
    /// is incomplete.
    pub content: Vec<AnswerBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`
    pub stop_reason: Option<&'static str>,
    /// The stop sequence that ended the answer, if one did.
    pub stop_sequence: Option<String>,
    pub usage: MessageUsage,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum AnswerBlock {
    /// What the model wrote for itself before its answer.
    Thinking {
        thinking: String,
        /// Sent back with the block, it proves that this server wrote it.
        signature: String,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        /// As the model wrote it.
        #[schema(value_type = Object)]
        input: Box<RawValue>,
    },
}

/// Token usage. The prompt's tokens are those of `input_tokens` and `cache_read_input_tokens` together.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct MessageUsage {
    /// Prompt tokens that were computed.
    pub input_tokens: usize,
    /// Prompt tokens that were cached.
    pub cache_read_input_tokens: usize,
    /// Always 0: caching costs nothing.
    pub cache_creation_input_tokens: usize,
    pub output_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    pub input_tokens: usize,
}

impl AnswerBlock {
    /// Returns all complete blocks.
    pub(crate) fn all(sections: &Sections) -> Vec<Self> {
        sections.all().iter().filter_map(Self::of).collect()
    }

    fn of(section: &Section) -> Option<Self> {
        match section {
            Section::Reasoning(text) => {
                Some(Self::Thinking { thinking: text.clone(), signature: Signature::of(text).to_string() })
            }
            Section::Text(text) => Some(Self::Text { text: text.clone() }),
            Section::Call(call) => {
                let input = RawValue::from_string(call.arguments.clone()).ok()?;
                Some(Self::ToolUse { id: tool_use_id(call), name: call.name.clone(), input })
            }
        }
    }

    /// Returns the empty block that announces it.
    pub(crate) fn opening(section: &Section) -> Self {
        match section {
            Section::Reasoning(_) => Self::Thinking { thinking: String::new(), signature: String::new() },
            Section::Text(_) => Self::Text { text: String::new() },
            Section::Call(call) => {
                let input = RawValue::from_string("{}".to_owned()).expect("it is valid JSON");
                Self::ToolUse { id: tool_use_id(call), name: call.name.clone(), input }
            }
        }
    }
}

/// Returns the id of a call in Anthropic's format.
fn tool_use_id(call: &ToolCall) -> String {
    format!("toolu_{}", call.id.strip_prefix("call_").unwrap_or(&call.id))
}

/// Returns why an answer ended, and the stop sequence if one ended it.
pub(crate) fn stop_reason(response: &Response, stop_sequences: &[String]) -> (&'static str, Option<String>) {
    let stop_sequence = response.stop_index.and_then(|index| stop_sequences.get(index));
    match (response.finish_reason, stop_sequence) {
        (Some(FinishReason::Length), _) => ("max_tokens", None),
        (_, Some(text)) => ("stop_sequence", Some(text.clone())),
        _ if !response.tool_calls.is_empty() => ("tool_use", None),
        _ => ("end_turn", None),
    }
}

impl From<Usage> for MessageUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens - usage.cached_tokens,
            cache_read_input_tokens: usage.cached_tokens,
            cache_creation_input_tokens: 0,
            output_tokens: usage.completion_tokens,
        }
    }
}
