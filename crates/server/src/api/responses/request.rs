//! `POST /v1/responses`: the request, its validation and conversion for the runtime.

use std::collections::BTreeMap;

use ruvllm_runtime::{Message, OutputFormat, Prompt, Request, Sampling, Strictness, Tools, Truncation, closed};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::input::{self, Input};
use super::response::{ResponseObject, TextConfig};
use super::store::ResponseStore;
use super::tools::{OfferedTools, ToolItem};
use crate::api::adapter_fields::{self, AdapterField};
use crate::api::conversation::Conversation;
use crate::api::keep_alive::KeepAliveField;
use crate::api::reasoning::ReasoningParam;
use crate::api::typed::refuse;
use crate::api::{fields, ids};
use crate::error::ApiError;
use crate::ignored::IgnoredParams;
use crate::models::AskedAdapters;

/// The supported values of `include`. Reasoning always comes with the second.
const LOGPROBS: &str = "message.output_text.logprobs";
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// What to answer, and how. Unknown parameters are ignored and named in the header `x-ruvllm-ignored`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponsesRequest {
    /// A model of this server; `GET /v1/models` lists them. `auto` leaves the choice to the server.
    #[schema(example = "smollm2")]
    pub model: String,
    #[schema(value_type = Input)]
    pub input: Value,
    /// A system message before all others, for this response only.
    pub instructions: Option<String>,
    /// A stored response to continue: see `store`.
    pub previous_response_id: Option<String>,
    /// Whether the response is stored, so that it can be retrieved and continued; true by default. The server stores
    /// the newest 1024 responses, up to 64 MiB, in memory until it restarts.
    pub store: Option<bool>,
    /// Maximum number of generated tokens; by default what the context has room for.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<usize>,
    /// 0 always takes the most likely token; 0.8 by default.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    /// 0.95 by default; 1 is off.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    pub stream: Option<bool>,
    /// Tools that the model may call. The server itself calls none.
    #[schema(value_type = Option<Vec<ToolItem>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, `{"type": "function", "name": "..."}` or `{"type": "allowed_tools", ...}`
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// Whether one answer may call several tools; true by default.
    pub parallel_tool_calls: Option<bool>,
    pub text: Option<TextField>,
    /// Whether the oldest messages are dropped if the conversation is too long (`auto`), or the request is refused.
    pub truncation: Option<TruncationField>,
    /// Returned unchanged in the response; has no other effect.
    pub metadata: Option<BTreeMap<String, String>>,
    /// End user of this request, for the log.
    pub user: Option<String>,
    /// The same under its newer name.
    pub safety_identifier: Option<String>,
    /// Has no effect: common prefixes of prompts are always cached.
    pub prompt_cache_key: Option<String>,
    /// `message.output_text.logprobs` and `reasoning.encrypted_content`
    pub include: Option<Vec<String>>,
    /// Number of the most likely tokens to report at each position, if `include` asks for log probabilities.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<usize>,
    /// Has no effect: there is only one tier.
    pub service_tier: Option<String>,
    pub reasoning: Option<ReasoningField>,
    /// Maximum number of tokens of prompt and answer. More than the model is loaded with has no effect.
    #[schema(minimum = 1)]
    pub num_ctx: Option<i64>,
    /// How long the model stays loaded after the answer: seconds, or a text such as `5m`.
    pub keep_alive: Option<KeepAliveField>,
    /// The adapter that the answer is generated with, if `model` does not name it: its name, or several such as
    /// `[{"name": "legal", "weight": 0.5}]`.
    pub adapter: Option<AdapterField>,
    /// Whether the answer may be drawn with a memory of what was corrected earlier, where its sender has opted in to
    /// learning; true by default. The header `x-ruvllm-recall` says whether there was one.
    pub recall: Option<bool>,
    // Refused: answers would mean something else without them.
    #[schema(ignore)]
    pub background: Option<Value>,
    #[schema(ignore)]
    pub conversation: Option<Value>,
    #[schema(ignore)]
    pub prompt: Option<Value>,
    // Accepted without effect.
    #[schema(ignore)]
    pub max_tool_calls: Option<Value>,
    #[schema(ignore)]
    pub stream_options: Option<Value>,
}

/// How much the model reasons before it answers, if it does.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ReasoningField {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`; each is a maximum number of tokens.
    pub effort: Option<String>,
    /// The reasoning itself is returned, whatever this says: the models of this server do not summarise.
    #[schema(ignore)]
    #[expect(dead_code, reason = "it is accepted and has no effect")]
    pub summary: Option<Value>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct TextField {
    pub format: Option<TextFormat>,
    #[schema(ignore)]
    pub verbosity: Option<Value>,
}

/// Format of the answer.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TextFormat {
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that follows a schema.
    JsonSchema {
        name: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        #[schema(value_type = Object)]
        schema: Value,
        /// Whether a schema that cannot be enforced completely is refused.
        strict: Option<bool>,
    },
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TruncationField {
    Auto,
    #[default]
    Disabled,
}

/// A validated request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub request: Request,
    /// The conversation without the instructions.
    pub conversation: Conversation,
    /// The response before anything was generated.
    pub object: ResponseObject,
    pub tools: OfferedTools,
    pub wants_logprobs: bool,
}

impl ResponsesRequest {
    /// Returns the adapters that the request names.
    pub(crate) fn adapters(&self) -> Result<AskedAdapters, ApiError> {
        adapter_fields::asked(self.adapter.as_ref(), None)
    }

    pub(crate) fn ask(&self, store: &ResponseStore, tenant: &str, ignored: &IgnoredParams) -> Result<Asked, ApiError> {
        self.refuse_unsupported(ignored)?;
        let conversation = self.conversation(store, tenant, ignored)?;
        let given = self.tools.as_deref().unwrap_or_default();
        let tools = OfferedTools::new(given, self.tool_choice.as_ref(), self.parallel_tool_calls, ignored)?;
        let wants_logprobs = self.wants_logprobs(&tools.tools, ignored)?;
        let sampling = self.sampling(wants_logprobs);
        let object = self.object(&sampling);
        let instructions = self.instructions.as_deref().map(Message::system);
        let messages = instructions.into_iter().chain(conversation.messages().iter().cloned()).collect();
        let mut request = Request {
            sampling,
            max_tokens: self.max_output_tokens,
            context: fields::context("num_ctx", self.num_ctx)?,
            clamps_max_tokens: true,
            may_recall: self.recall.unwrap_or(true),
            unset: fields::unset_params(self.temperature, self.top_p, self.max_output_tokens),
            output_format: self.shape(),
            tools: tools.tools.clone(),
            truncation: match self.truncation.unwrap_or_default() {
                TruncationField::Auto => Truncation::DropOldest,
                TruncationField::Disabled => Truncation::Refuse,
            },
            ..Request::new(Prompt::Messages(messages))
        };
        self.reasoning()?.apply(&mut request);
        Ok(Asked { request: fields::with_seed(request, None, 1), conversation, object, tools, wants_logprobs })
    }

    pub(crate) fn reasoning(&self) -> Result<ReasoningParam, ApiError> {
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
        ReasoningParam::of_effort("reasoning.effort", effort)
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub(crate) fn stores(&self) -> bool {
        self.store.unwrap_or(true)
    }

    fn conversation(
        &self,
        store: &ResponseStore,
        tenant: &str,
        ignored: &IgnoredParams,
    ) -> Result<Conversation, ApiError> {
        let mut conversation = match &self.previous_response_id {
            None => Conversation::default(),
            Some(id) => {
                let previous = store.get(tenant, id).ok_or_else(|| {
                    let message = format!(
                        "there is no response {id:?}: it was never stored, is no longer stored, or was deleted; send \
                         all items as input"
                    );
                    ApiError::invalid_param("previous_response_id", message).with_code("previous_response_not_found")
                })?;
                Conversation::after(&previous.messages)
            }
        };
        input::add(&self.input, &mut conversation, store, tenant, ignored)?;
        Ok(conversation)
    }

    fn wants_logprobs(&self, tools: &Tools, ignored: &IgnoredParams) -> Result<bool, ApiError> {
        let include = self.include.as_deref().unwrap_or_default();
        for (index, asked) in include.iter().enumerate() {
            if ![LOGPROBS, ENCRYPTED_REASONING].contains(&asked.as_str()) {
                ignored.note(&format!("include[{index}]:{asked}"), "it cannot be included")?;
            }
        }
        let wants_logprobs = include.iter().any(|asked| asked == LOGPROBS);
        if !wants_logprobs && self.top_logprobs.unwrap_or(0) > 0 {
            let message = format!("top_logprobs needs include: [\"{LOGPROBS}\"]");
            return Err(ApiError::invalid_param("top_logprobs", message));
        }
        if wants_logprobs && !tools.definitions.is_empty() {
            // It is not known which tokens belong to a text and which to a tool call.
            let message = "log probabilities cannot be reported if tools may be called; omit one of them";
            return Err(ApiError::invalid_param("include", message));
        }
        Ok(wants_logprobs)
    }

    fn sampling(&self, wants_logprobs: bool) -> Sampling {
        let default = Sampling::default();
        Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_p: self.top_p.unwrap_or(default.top_p),
            top_logprobs: wants_logprobs.then(|| self.top_logprobs.unwrap_or(0)),
            ..default
        }
    }

    fn format(&self) -> TextFormat {
        self.text.as_ref().and_then(|text| text.format.clone()).unwrap_or_default()
    }

    fn shape(&self) -> Option<OutputFormat> {
        match self.format() {
            TextFormat::Text => None,
            TextFormat::JsonObject => Some(OutputFormat::JsonObject),
            TextFormat::JsonSchema { schema, strict, .. } => {
                Some(OutputFormat::JsonSchema { schema: closed(&schema), strictness: Strictness::of_flag(strict) })
            }
        }
    }

    /// Returns the initial response, with the parameters as understood.
    fn object(&self, sampling: &Sampling) -> ResponseObject {
        ResponseObject {
            id: ids::new("resp_"),
            object: "response",
            created_at: ids::now_unix_s(),
            status: "in_progress",
            instructions: self.instructions.clone(),
            max_output_tokens: self.max_output_tokens,
            metadata: self.metadata.clone().unwrap_or_default(),
            model: self.model.clone(),
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous_response_id: self.previous_response_id.clone(),
            prompt_cache_key: self.prompt_cache_key.clone(),
            safety_identifier: self.safety_identifier.clone(),
            service_tier: "default",
            store: self.stores(),
            temperature: sampling.temperature,
            text: TextConfig { format: self.format() },
            tool_choice: self.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            tools: self.tools.clone().unwrap_or_default(),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            top_p: sampling.top_p,
            truncation: self.truncation.unwrap_or_default(),
            user: self.user.clone(),
            ..ResponseObject::default()
        }
    }

    fn refuse_unsupported(&self, ignored: &IgnoredParams) -> Result<(), ApiError> {
        refuse("background", self.background.as_ref(), "responses are generated while the client waits; use stream")?;
        refuse("conversation", self.conversation.as_ref(), "continue with previous_response_id instead")?;
        refuse("prompt", self.prompt.as_ref(), "there are no prompt templates; use instructions and input")?;
        fields::note_service_tier(self.service_tier.as_deref(), ["auto", "default"], ignored)?;
        let verbosity = self.text.as_ref().and_then(|text| text.verbosity.as_ref());
        ignored.note_given("text.verbosity", verbosity, "say in the instructions how long answers should be")?;
        ignored.note_given("max_tool_calls", self.max_tool_calls.as_ref(), "the server runs no tools")?;
        ignored.note_given("stream_options", self.stream_options.as_ref(), "events are never padded")
    }
}
