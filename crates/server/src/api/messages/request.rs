//! `POST /v1/messages`: the request, its validation and conversion for the runtime.

use ruvllm_runtime::{Prompt, Request, Sampling, Strictness, Tool, ToolChoice, Tools, UnsetParams, closed};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::blocks::{CacheControl, MessageField, TextContent, messages};
use crate::api::adapter_fields::{self, AdapterField};
use crate::api::fields;
use crate::api::keep_alive::KeepAliveField;
use crate::api::reasoning::ReasoningParam;
use crate::api::typed::{Typed, refuse};
use crate::error::ApiError;
use crate::ignored::IgnoredParams;
use crate::models::AskedAdapters;

/// A conversation to continue. Unknown parameters are ignored and named in the header `x-ruvllm-ignored`.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub struct MessagesRequest {
    /// A model of this server; `GET /v1/models` lists them. `auto` leaves the choice to the server.
    #[schema(example = "smollm2")]
    pub model: String,
    #[schema(min_items = 1)]
    pub messages: Vec<MessageField>,
    /// Maximum number of generated tokens.
    #[schema(minimum = 1)]
    pub max_tokens: usize,
    #[schema(value_type = Option<TextContent>)]
    pub system: Option<Value>,
    /// Stop strings: the answer ends before them.
    pub stop_sequences: Option<Vec<String>>,
    pub stream: Option<bool>,
    /// 0 always takes the most likely token; 0.8 by default.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    /// 0.95 by default; 1 is off.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Only the most likely tokens; 40 by default, 0 is off.
    pub top_k: Option<usize>,
    /// Tools that the model may call. The server itself calls none.
    #[schema(value_type = Option<Vec<ClientTool>>)]
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<ToolChoiceField>,
    pub metadata: Option<Metadata>,
    /// Has no effect: there is only one tier.
    pub service_tier: Option<String>,
    #[schema(value_type = Option<CacheControl>)]
    pub cache_control: Option<Value>,
    pub output_config: Option<OutputConfig>,
    pub thinking: Option<Thinking>,
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
    pub container: Option<Value>,
    #[schema(ignore)]
    pub mcp_servers: Option<Value>,
}

/// Whether the model reasons before it answers, if it does.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Thinking {
    /// It reasons, for up to so many tokens.
    Enabled {
        #[schema(minimum = 1)]
        budget_tokens: Option<usize>,
    },
    /// The model decides, or `output_config.effort` does.
    Adaptive {},
    Disabled {},
}

/// A prompt whose tokens are counted.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub struct CountTokensRequest {
    #[schema(example = "smollm2")]
    pub model: String,
    #[schema(min_items = 1)]
    pub messages: Vec<MessageField>,
    #[schema(value_type = Option<TextContent>)]
    pub system: Option<Value>,
    #[schema(value_type = Option<Vec<ClientTool>>)]
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<ToolChoiceField>,
    #[schema(value_type = Option<CacheControl>)]
    pub cache_control: Option<Value>,
    /// Has no effect on the prompt.
    pub output_config: Option<OutputConfig>,
    /// Has no effect on the number of tokens here.
    pub thinking: Option<Thinking>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct OutputConfig {
    pub format: Option<OutputFormat>,
    /// How much the model reasons before it answers, if it does: `low`, `medium`, `high`, `xhigh` or `max`.
    pub effort: Option<String>,
}

/// Format of the answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputFormat {
    /// JSON that follows a schema.
    JsonSchema {
        #[schema(value_type = Object)]
        schema: Value,
    },
}

/// A tool that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub struct ClientTool {
    /// 1 to 64 letters, digits, `_` and `-`
    pub name: String,
    pub description: Option<String>,
    /// JSON Schema of the input.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    pub strict: Option<bool>,
    #[schema(value_type = Option<CacheControl>)]
    pub cache_control: Option<Value>,
}

/// Whether tools are called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolChoiceField {
    /// The model decides.
    Auto { disable_parallel_tool_use: Option<bool> },
    /// At least one must be called.
    Any { disable_parallel_tool_use: Option<bool> },
    /// This one must be called.
    Tool { name: String, disable_parallel_tool_use: Option<bool> },
    /// The model does not see any tools.
    None {},
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct Metadata {
    /// End user of this request, for the log and the memory.
    #[schema(max_length = 512)]
    pub user_id: Option<String>,
}

impl Metadata {
    /// Returns the end user. Claude Code adds its session (`user_…_account_…_session_…`), which changes all the time.
    pub(crate) fn user(&self) -> Option<&str> {
        let id = self.user_id.as_deref()?;
        let user = id.rsplit_once("_session_").map(|(user, _)| user).filter(|user| user.starts_with("user_"));
        Some(user.unwrap_or(id))
    }
}

impl MessagesRequest {
    /// Returns the adapters that the request names.
    pub(crate) fn adapters(&self) -> Result<AskedAdapters, ApiError> {
        adapter_fields::asked(self.adapter.as_ref(), None)
    }

    pub(crate) fn request(&self, ignored: &IgnoredParams) -> Result<Request, ApiError> {
        self.refuse_unsupported(ignored)?;
        let default = Sampling::default();
        let mut request = Request {
            sampling: Sampling {
                temperature: self.temperature.unwrap_or(default.temperature),
                top_p: self.top_p.unwrap_or(default.top_p),
                top_k: self.top_k.unwrap_or(default.top_k),
                ..default
            },
            max_tokens: Some(self.max_tokens),
            context: fields::context("num_ctx", self.num_ctx)?,
            // Agents ask for what their own models can write.
            clamps_max_tokens: true,
            may_recall: self.recall.unwrap_or(true),
            unset: UnsetParams {
                top_k: self.top_k.is_none(),
                ..fields::unset_params(self.temperature, self.top_p, Some(self.max_tokens))
            },
            stop: self.stop_sequences.clone().unwrap_or_default(),
            output_format: shape(self.output_config.as_ref()),
            tools: tools(self.tools.as_deref(), self.tool_choice.as_ref(), ignored)?,
            ..Request::new(Prompt::Messages(messages(self.system.as_ref(), &self.messages, ignored)?))
        };
        self.reasoning()?.apply(&mut request);
        Ok(fields::with_seed(request, None, 1))
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub(crate) fn reasoning(&self) -> Result<ReasoningParam, ApiError> {
        let effort = self.output_config.as_ref().and_then(|config| config.effort.as_deref());
        match &self.thinking {
            Some(Thinking::Enabled { budget_tokens }) => Ok(ReasoningParam::on("thinking", *budget_tokens)),
            Some(Thinking::Disabled {}) => Ok(ReasoningParam::off("thinking")),
            Some(Thinking::Adaptive {}) if effort.is_none() => Ok(ReasoningParam::on("thinking", None)),
            Some(Thinking::Adaptive {}) | None => ReasoningParam::of_effort("output_config.effort", effort),
        }
    }

    fn refuse_unsupported(&self, ignored: &IgnoredParams) -> Result<(), ApiError> {
        fields::note_service_tier(self.service_tier.as_deref(), ["auto", "standard_only"], ignored)?;
        refuse("container", self.container.as_ref(), "this server does not run tools")?;
        refuse("mcp_servers", self.mcp_servers.as_ref(), "this server does not run tools")
    }
}

impl CountTokensRequest {
    /// Returns the prompt as an answer would start with it.
    pub(crate) fn prompt(&self, ignored: &IgnoredParams) -> Result<(Prompt, Tools), ApiError> {
        let messages = messages(self.system.as_ref(), &self.messages, ignored)?;
        Ok((Prompt::Messages(messages), tools(self.tools.as_deref(), self.tool_choice.as_ref(), ignored)?))
    }
}

fn shape(config: Option<&OutputConfig>) -> Option<ruvllm_runtime::OutputFormat> {
    let OutputFormat::JsonSchema { schema } = config?.format.as_ref()?;
    Some(ruvllm_runtime::OutputFormat::relaxed_schema(closed(schema)))
}

fn tools(
    tools: Option<&[Value]>,
    choice: Option<&ToolChoiceField>,
    ignored: &IgnoredParams,
) -> Result<Tools, ApiError> {
    let tool = |tool: &Typed<'_>| match tool.kind {
        None | Some("custom") => {
            let ClientTool { name, description, input_schema, strict, .. } = tool.read()?;
            let strictness = Strictness::of_flag(strict);
            Ok(Some(Tool { name, description, parameters: input_schema, strictness }))
        }
        // Left out: those that Anthropic's servers run, and those whose form its models have learnt.
        Some(_) => tool.ignore("this server offers only tools with an input_schema").map(|()| None),
    };
    let tools = Typed::list(tools.unwrap_or_default(), "tools", ignored)?;
    let definitions = tools.iter().filter_map(|given| tool(given).transpose());
    let definitions = definitions.collect::<Result<Vec<Tool>, ApiError>>()?;
    let (choice, disables_parallel) = match choice {
        None => (ToolChoice::Auto, &None),
        Some(ToolChoiceField::Auto { disable_parallel_tool_use }) => (ToolChoice::Auto, disable_parallel_tool_use),
        Some(ToolChoiceField::Any { disable_parallel_tool_use }) => (ToolChoice::Required, disable_parallel_tool_use),
        Some(ToolChoiceField::Tool { name, disable_parallel_tool_use }) => {
            (ToolChoice::Named(name.clone()), disable_parallel_tool_use)
        }
        Some(ToolChoiceField::None {}) => (ToolChoice::None, &None),
    };
    if definitions.is_empty() && matches!(choice, ToolChoice::Required | ToolChoice::Named(_)) {
        return Err(ApiError::invalid_param("tool_choice", "tool_choice requires a call, but there are no tools"));
    }
    Ok(Tools { definitions, choice, are_parallel: disables_parallel.map(|disables| !disables) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::body::parse;

    fn request(extra: Value) -> Result<(Request, Vec<String>), ApiError> {
        let mut body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let ignored = IgnoredParams::default();
        let request: MessagesRequest = parse(body.to_string().as_bytes(), &ignored)?;
        Ok((request.request(&ignored)?, ignored.all()))
    }

    fn check_refused(extra: Value, param: &str) {
        let error = request(extra).expect_err(param);
        assert_eq!(error.param.as_deref(), Some(param), "{error:?}");
    }

    #[test]
    fn choices_of_tools_mean_the_same_as_elsewhere() {
        let tool = json!([{"name": "f", "description": "d", "input_schema": {"type": "object"}}]);
        for (choice, expected, are_parallel) in [
            (json!({"type": "auto"}), ToolChoice::Auto, None),
            (json!({"type": "any", "disable_parallel_tool_use": true}), ToolChoice::Required, Some(false)),
            (json!({"type": "tool", "name": "f"}), ToolChoice::Named("f".to_owned()), None),
            (json!({"type": "none"}), ToolChoice::None, None),
        ] {
            let tools = request(json!({"tools": tool, "tool_choice": choice})).unwrap().0.tools;
            assert_eq!((tools.choice, tools.are_parallel), (expected, are_parallel), "{choice}");
            assert_eq!(tools.definitions[0].parameters, json!({"type": "object"}));
        }
        check_refused(json!({"tool_choice": {"type": "any"}}), "tool_choice");
        check_refused(json!({"tool_choice": {"type": "tool"}}), "tool_choice.name");
    }

    #[test]
    fn what_would_change_the_meaning_is_refused_by_name() {
        check_refused(json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers");
        check_refused(json!({"tools": [{"name": "f"}]}), "tools[0].input_schema");
        check_refused(json!({"output_config": {"effort": "huge"}}), "output_config.effort");
        check_refused(json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema");
        check_refused(json!({"system": [{"type": "image"}]}), "system[0].type");
        check_refused(json!({"max_token": 5}), "max_token");
        check_refused(json!({"thinking": {"type": "sometimes"}}), "thinking.type");
        let server_tool = json!([{"type": "web_search_20250305", "name": "web_search"}]);
        check_refused(json!({"tools": server_tool, "tool_choice": {"type": "any"}}), "tool_choice");
    }

    #[test]
    fn what_only_tunes_is_accepted_and_named() {
        let (_, ignored) = request(json!({
            "service_tier": "gold", "context_management": {"edits": []}, "speed": "fast",
            "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
            "cache_control": {"type": "ephemeral", "scope": "global"},
        }))
        .unwrap();
        assert_eq!(ignored, ["context_management", "speed", "service_tier", "tools[0]:web_search_20250305"]);
    }

    #[test]
    fn thinking_is_a_budget() {
        let budget = |extra: Value| request(extra).unwrap().0.reasoning_budget;
        assert_eq!(budget(json!({"thinking": {"type": "enabled", "budget_tokens": 9}})), Some(9));
        assert_eq!(budget(json!({"thinking": {"type": "disabled"}})), Some(0));
        assert_eq!(budget(json!({"thinking": {"type": "adaptive"}})), None);
        let adaptive = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}});
        assert_eq!(budget(adaptive), Some(1024));
        assert_eq!(budget(json!({})), None);
    }
}
