//! `POST /v1/chat/completions`: what is asked, checked and put into the runtime's words.

use std::collections::BTreeMap;

use ruvllm_runtime::{Message, Prompt, Request, ToolCall};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::fields::{self, GrammarField, ResponseFormat, Stop, StreamOptions};
use crate::api::tools::{ToolChoiceField, ToolField, tools};
use crate::error::ApiError;

/// Of somebody who takes part in a conversation.
const NAME_BYTES_MAX: usize = 256;

/// A conversation to continue. Parameters that are not listed here are refused by name.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// A model of this server; `GET /v1/models` lists them.
    #[schema(example = "smollm2")]
    pub model: String,
    #[schema(min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// Tokens of the answer at most; whatever the context holds by default.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<usize>,
    /// The same under its old name.
    #[schema(minimum = 1)]
    pub max_tokens: Option<usize>,
    /// How many answers to generate.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<usize>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub stop: Option<Stop>,
    /// Tools that the model may call.
    pub tools: Option<Vec<ToolField>>,
    pub tool_choice: Option<ToolChoiceField>,
    /// Whether several tools may be called in one answer; they may by default.
    pub parallel_tool_calls: Option<bool>,
    pub response_format: Option<ResponseFormat>,
    /// A grammar that the answer must follow: GBNF as text, or with its kind.
    pub grammar: Option<GrammarField>,
    /// A regular expression that the whole answer must match.
    pub regex: Option<String>,
    pub logprobs: Option<bool>,
    /// How many of the likeliest tokens to report with each token.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<usize>,
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
    /// The conversation that goes on with these messages, which the server remembers, or begins with them. Only what is new
    /// needs to be sent.
    #[schema(max_length = 200)]
    pub session: Option<String>,
    /// Nothing is stored: only false is accepted.
    pub store: Option<bool>,
    /// There is one: `auto` and `default` are accepted.
    pub service_tier: Option<String>,
}

/// One turn of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`
    pub role: String,
    pub content: Option<Content>,
    pub name: Option<String>,
    pub tool_calls: Option<Vec<ToolCallField>>,
    pub tool_call_id: Option<String>,
    // Answers have these, of other servers too, and clients send them back as they came.
    pub refusal: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub audio: Option<Value>,
    #[schema(value_type = Option<Object>)]
    pub function_call: Option<Value>,
    #[schema(value_type = Option<Vec<Object>>)]
    #[expect(dead_code, reason = "remarks on an earlier answer are no part of the conversation")]
    pub annotations: Option<Vec<Value>>,
}

/// A text, or its parts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, or a list of parts such as {\"type\": \"text\", \"text\": \"...\"}")]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct ContentPart {
    /// `text`; this server's models read nothing else.
    #[serde(rename = "type")]
    pub kind: String,
    pub text: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCallField {
    pub id: String,
    /// `function`
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub function: FunctionCallField,
    #[expect(dead_code, reason = "clients that put a stream together send it back; the order of the list counts")]
    pub index: Option<usize>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionCallField {
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

impl ChatRequest {
    /// What the engine is asked.
    pub(crate) fn request(&self) -> Result<Request, ApiError> {
        self.refuse_unsupported()?;
        let n = fields::count("n", self.n)?;
        let messages = messages(&self.messages)?;
        let tools = tools(self.tools.as_deref(), self.tool_choice.as_ref(), self.parallel_tool_calls)?;
        let request = Request {
            sampling: fields::sampling_of!(self, self.top_logprobs()?),
            max_tokens: fields::max_tokens(self.max_completion_tokens, self.max_tokens)?,
            stop: fields::stop(self.stop.as_ref())?,
            output_format: fields::shape(self.response_format.as_ref(), self.grammar.as_ref(), self.regex.as_deref())?,
            tools,
            priority: self.priority.unwrap_or(0),
            session: self.session.clone(),
            unset: fields::left_open!(self, self.max_completion_tokens.or(self.max_tokens)),
            ..Request::new(Prompt::Messages(messages))
        };
        Ok(fields::with_seed(request, self.seed, n))
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage.unwrap_or(false))
    }

    /// How many alternatives to report with each token, if any.
    fn top_logprobs(&self) -> Result<Option<usize>, ApiError> {
        let wants_logprobs = self.logprobs.unwrap_or(false);
        if self.top_logprobs.is_some() && !wants_logprobs {
            return Err(ApiError::invalid_param("top_logprobs", "top_logprobs needs logprobs: true"));
        }
        Ok(wants_logprobs.then(|| self.top_logprobs.unwrap_or(0)))
    }

    /// Fields that other servers know and whose values would make no difference here.
    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        fields::refuse_store(self.store)?;
        fields::check_service_tier(self.service_tier.as_deref())?;
        fields::check_stream_options(self.stream, self.stream_options.as_ref())
    }
}

/// A conversation in the runtime's words.
pub(crate) fn messages(messages: &[ChatMessage]) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid_param("messages", "messages is empty; give at least one"));
    }
    messages.iter().enumerate().map(|(index, message)| message.to_message(index)).collect()
}

impl ChatMessage {
    fn to_message(&self, index: usize) -> Result<Message, ApiError> {
        let role = match self.role.as_str() {
            // What newer clients call the system.
            "developer" => "system",
            role @ ("system" | "user" | "assistant" | "tool") => role,
            role => {
                let message = format!("the role {role:?} is not known; use system, user, assistant or tool");
                return Err(ApiError::invalid_param(format!("messages[{index}].role"), message));
            }
        };
        let given = [("audio", self.audio.is_some()), ("function_call", self.function_call.is_some())];
        if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
            let message = format!("{field} is not supported; leave it out");
            return Err(ApiError::invalid_param(format!("messages[{index}].{field}"), message));
        }
        let tool_calls = self.tool_calls.as_deref().unwrap_or_default();
        if !tool_calls.is_empty() && role != "assistant" {
            let message = "only messages of the assistant have tool_calls";
            return Err(ApiError::invalid_param(format!("messages[{index}].tool_calls"), message));
        }
        if role == "tool" && self.tool_call_id.is_none() {
            let message = "the result of a tool needs the tool_call_id that it belongs to";
            return Err(ApiError::invalid_param(format!("messages[{index}].tool_call_id"), message));
        }
        if self.name.as_ref().is_some_and(|name| name.len() > NAME_BYTES_MAX) {
            let message = format!("a name has {NAME_BYTES_MAX} bytes at most");
            return Err(ApiError::invalid_param(format!("messages[{index}].name"), message));
        }
        let content = match &self.content {
            Some(content) => content.text(&format!("messages[{index}].content"))?,
            None if role == "assistant" => self.refusal.clone().unwrap_or_default(),
            None => {
                let message = format!("a message of the role {role} needs content");
                return Err(ApiError::invalid_param(format!("messages[{index}].content"), message));
            }
        };
        let call = |(i, call): (usize, &ToolCallField)| call.to_call(&format!("messages[{index}].tool_calls[{i}]"));
        Ok(Message {
            content,
            tool_calls: tool_calls.iter().enumerate().map(call).collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id.clone(),
            name: self.name.clone(),
            ..Message::new(role, "")
        })
    }
}

impl Content {
    /// All of it as one text.
    fn text(&self, place: &str) -> Result<String, ApiError> {
        let parts = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Parts(parts) => parts,
        };
        let text = |(index, part): (usize, &ContentPart)| match (part.kind.as_str(), &part.text) {
            ("text", Some(text)) => Ok(text.clone()),
            ("text", None) => Err(ApiError::invalid_param(format!("{place}[{index}].text"), "the part has no text")),
            (kind, _) => {
                let message =
                    format!("parts of the type {kind:?} are not supported: this server's models read text only");
                Err(ApiError::invalid_param(format!("{place}[{index}].type"), message))
            }
        };
        parts.iter().enumerate().map(text).collect()
    }
}

impl ToolCallField {
    fn to_call(&self, place: &str) -> Result<ToolCall, ApiError> {
        if self.kind.as_deref().is_some_and(|kind| kind != "function") {
            return Err(ApiError::invalid_param(format!("{place}.type"), "the type of a tool call is function"));
        }
        let FunctionCallField { name, arguments } = &self.function;
        Ok(ToolCall { id: self.id.clone(), name: name.clone(), arguments: arguments.clone() })
    }
}
