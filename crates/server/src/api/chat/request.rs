//! `POST /v1/chat/completions`: the request, its validation and conversion for the runtime.

use ruvllm_runtime::{Message, Prompt, Request, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::fields::{self, GrammarField, ResponseFormat, Stop, StreamOptions};
use crate::api::reasoning::{ReasoningParam, template_variables};
use crate::api::sampling_fields;
use crate::api::tools::{ToolChoiceField, ToolField, tools};
use crate::api::typed::refuse;
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// Maximum length of the name of a participant.
const NAME_BYTES_MAX: usize = 256;

sampling_fields::with_sampling_fields! {
    /// A conversation to continue. Unknown parameters are ignored and named in the header `x-ruvllm-ignored`.
    #[derive(Debug, Deserialize, ToSchema)]
        pub struct ChatRequest {
        /// A model of this server; `GET /v1/models` lists them. `auto` leaves the choice to the server.
        #[schema(example = "smollm2")]
        pub model: String,
        #[schema(min_items = 1)]
        pub messages: Vec<ChatMessage>,
        /// Maximum number of generated tokens; by default what the context has room for.
        #[schema(minimum = 1)]
        pub max_completion_tokens: Option<usize>,
        /// The same under its old name.
        #[schema(minimum = 1)]
        pub max_tokens: Option<usize>,
        /// Number of answers to generate.
        #[schema(minimum = 1, maximum = 128)]
        pub n: Option<usize>,
        pub stream: Option<bool>,
        pub stream_options: Option<StreamOptions>,
        pub stop: Option<Stop>,
        /// Tools that the model may call.
        pub tools: Option<Vec<ToolField>>,
        pub tool_choice: Option<ToolChoiceField>,
        /// Whether one answer may call several tools; true by default.
        pub parallel_tool_calls: Option<bool>,
        pub response_format: Option<ResponseFormat>,
        /// A grammar that the answer must follow: GBNF as text, or an object with its type.
        pub grammar: Option<GrammarField>,
        /// A regular expression that the whole answer must match.
        pub regex: Option<String>,
        pub logprobs: Option<bool>,
        /// Number of the most likely tokens to report at each position.
        #[schema(maximum = 20)]
        pub top_logprobs: Option<usize>,
        ..sampling,
        /// The session that these messages continue or start. The server stores it, so that only new messages need to
        /// be sent.
        #[schema(max_length = 200)]
        pub session: Option<String>,
        /// How much the model reasons before it answers, if it does: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`
        /// or `max`. Each is a maximum number of tokens.
        pub reasoning_effort: Option<String>,
        /// Variables for the model's chat template, such as `enable_thinking`.
        #[schema(value_type = Option<Object>)]
        pub chat_template_kwargs: Option<Map<String, Value>>,
        /// End user of this request, under its newer name; `user` precedes it.
        #[schema(max_length = 512)]
        pub safety_identifier: Option<String>,
        /// `text`; the models of this server generate nothing else.
        pub modalities: Option<Vec<String>>,
        /// Has no effect: answers are not stored.
        pub store: Option<bool>,
        /// Has no effect: there is only one tier.
        pub service_tier: Option<String>,
        // Refused: answers would mean something else without them.
        #[schema(ignore)]
        pub functions: Option<Value>,
        #[schema(ignore)]
        pub function_call: Option<Value>,
        #[schema(ignore)]
        pub audio: Option<Value>,
    }
}

/// One message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`
    pub role: String,
    pub content: Option<Content>,
    pub name: Option<String>,
    pub tool_calls: Option<Vec<ToolCallField>>,
    pub tool_call_id: Option<String>,
    // Answers of this and other servers have these fields, and clients send them back unchanged.
    pub refusal: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub audio: Option<Value>,
    #[schema(value_type = Option<Object>)]
    pub function_call: Option<Value>,
    #[schema(value_type = Option<Vec<Object>>)]
    #[expect(dead_code, reason = "annotations of an earlier answer are not part of the conversation")]
    pub annotations: Option<Vec<Value>>,
    /// What the assistant wrote for itself before. The model's template decides whether the model sees it again.
    #[serde(alias = "reasoning")]
    pub reasoning_content: Option<String>,
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
    /// `text`; the models of this server read nothing else.
    #[serde(rename = "type")]
    pub kind: String,
    pub text: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct ToolCallField {
    pub id: String,
    /// `function`
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub function: FunctionCallField,
    #[expect(dead_code, reason = "clients that assemble a stream send it back; the order of the list counts")]
    pub index: Option<usize>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct FunctionCallField {
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

impl ChatRequest {
    /// Converts the request for the engine.
    pub(crate) fn request(&self, ignored: &IgnoredParams) -> Result<Request, ApiError> {
        self.refuse_unsupported(ignored)?;
        let n = fields::count("n", self.n)?;
        let messages = messages(&self.messages)?;
        let tools = tools(self.tools.as_deref(), self.tool_choice.as_ref(), self.parallel_tool_calls)?;
        let mut request = Request {
            sampling: self.sampling(self.top_logprobs()?)?,
            max_tokens: fields::max_tokens(self.max_completion_tokens, self.max_tokens)?,
            context: fields::context("num_ctx", self.num_ctx)?,
            clamps_max_tokens: true,
            template_variables: template_variables(self.chat_template_kwargs.as_ref())?,
            stop: fields::stop(self.stop.as_ref())?,
            output_format: fields::shape(self.response_format.as_ref(), self.grammar.as_ref(), self.regex.as_deref())?,
            tools,
            priority: self.priority.unwrap_or(0),
            session: self.session.clone(),
            may_recall: self.recall.unwrap_or(true),
            unset: self.unset(self.max_completion_tokens.or(self.max_tokens)),
            ..Request::new(Prompt::Messages(messages))
        };
        self.reasoning()?.apply(&mut request);
        Ok(fields::with_seed(request, self.seed, n))
    }

    pub(crate) fn reasoning(&self) -> Result<ReasoningParam, ApiError> {
        ReasoningParam::of_effort("reasoning_effort", self.reasoning_effort.as_deref())
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage.unwrap_or(false))
    }

    /// Returns the number of alternatives to report at each position, if any.
    fn top_logprobs(&self) -> Result<Option<usize>, ApiError> {
        let wants_logprobs = self.logprobs.unwrap_or(false);
        if self.top_logprobs.is_some() && !wants_logprobs {
            return Err(ApiError::invalid_param("top_logprobs", "top_logprobs needs logprobs: true"));
        }
        Ok(wants_logprobs.then(|| self.top_logprobs.unwrap_or(0)))
    }

    /// Refuses what would change the meaning of the answer and cannot be done; notes what only tunes it.
    fn refuse_unsupported(&self, ignored: &IgnoredParams) -> Result<(), ApiError> {
        let has_functions = self.functions.as_ref().or(self.function_call.as_ref());
        refuse("functions", has_functions, "it was replaced by tools and tool_choice")?;
        refuse("audio", self.audio.as_ref(), "the models of this server generate text only")?;
        if let Some(kind) = self.modalities.iter().flatten().find(|kind| *kind != "text") {
            let kind: String = kind.chars().take(64).collect();
            let message =
                format!("the modality {kind:?} is not supported: the models of this server generate text only");
            return Err(ApiError::invalid_param("modalities", message));
        }
        if self.store == Some(true) {
            ignored.note("store", "answers are not stored")?;
        }
        fields::note_service_tier(self.service_tier.as_deref(), ["auto", "default"], ignored)?;
        fields::note_stream_options(self.stream, self.stream_options.as_ref(), ignored)
    }
}

/// Converts a conversation for the runtime.
pub(crate) fn messages(messages: &[ChatMessage]) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid_param("messages", "messages is empty; give at least one"));
    }
    messages.iter().enumerate().map(|(index, message)| message.to_message(index)).collect()
}

impl ChatMessage {
    fn to_message(&self, index: usize) -> Result<Message, ApiError> {
        let role = match self.role.as_str() {
            // The newer name of the role system.
            "developer" => "system",
            role @ ("system" | "user" | "assistant" | "tool") => role,
            role => {
                let message = format!("unknown role {role:?}; use system, user, assistant or tool");
                return Err(ApiError::invalid_param(format!("messages[{index}].role"), message));
            }
        };
        let given = [("audio", self.audio.is_some()), ("function_call", self.function_call.is_some())];
        if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
            let message = format!("{field} is not supported; omit it");
            return Err(ApiError::invalid_param(format!("messages[{index}].{field}"), message));
        }
        let tool_calls = self.tool_calls.as_deref().unwrap_or_default();
        if !tool_calls.is_empty() && role != "assistant" {
            let message = "only messages of the assistant can have tool_calls";
            return Err(ApiError::invalid_param(format!("messages[{index}].tool_calls"), message));
        }
        if role == "tool" && self.tool_call_id.is_none() {
            let message = "the result of a tool needs its tool_call_id";
            return Err(ApiError::invalid_param(format!("messages[{index}].tool_call_id"), message));
        }
        if self.name.as_ref().is_some_and(|name| name.len() > NAME_BYTES_MAX) {
            let message = format!("a name may have up to {NAME_BYTES_MAX} bytes");
            return Err(ApiError::invalid_param(format!("messages[{index}].name"), message));
        }
        let content = match &self.content {
            Some(content) => content.text(&format!("messages[{index}].content"))?,
            None if role == "assistant" => self.refusal.clone().unwrap_or_default(),
            None => {
                let message = format!("a message with the role {role} needs content");
                return Err(ApiError::invalid_param(format!("messages[{index}].content"), message));
            }
        };
        let call = |(i, call): (usize, &ToolCallField)| call.to_call(&format!("messages[{index}].tool_calls[{i}]"));
        Ok(Message {
            content,
            tool_calls: tool_calls.iter().enumerate().map(call).collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id.clone(),
            name: self.name.clone(),
            reasoning: self.reasoning_content.clone().filter(|_| role == "assistant"),
            ..Message::new(role, "")
        })
    }
}

impl Content {
    /// Joins all parts to one text.
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
                    format!("parts of the type {kind:?} are not supported: the models of this server read text only");
                Err(ApiError::invalid_param(format!("{place}[{index}].type"), message))
            }
        };
        parts.iter().enumerate().map(text).collect()
    }
}

impl ToolCallField {
    fn to_call(&self, place: &str) -> Result<ToolCall, ApiError> {
        if self.kind.as_deref().is_some_and(|kind| kind != "function") {
            return Err(ApiError::invalid_param(format!("{place}.type"), "the type of a tool call must be function"));
        }
        let FunctionCallField { name, arguments } = &self.function;
        Ok(ToolCall { id: self.id.clone(), name: name.clone(), arguments: arguments.clone() })
    }
}
