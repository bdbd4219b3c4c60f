//! `POST /v1/messages`: the request, its validation and conversion for the runtime.

use ruvllm_runtime::{Prompt, Request, Sampling, Strictness, Tool, ToolChoice, Tools, closed};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::blocks::{CacheControl, MessageField, TextContent, messages};
use crate::api::fields;
use crate::api::typed::{Typed, refuse};
use crate::error::ApiError;

/// A conversation to continue. Unknown parameters are refused by name.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
pub struct MessagesRequest {
    /// A model of this server; `GET /v1/models` lists them.
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
    /// There is only one tier: `auto` and `standard_only` are accepted.
    pub service_tier: Option<String>,
    pub cache_control: Option<CacheControl>,
    pub output_config: Option<OutputConfig>,
    // Supported by other servers; refused with a reason if they ask for something.
    #[schema(ignore)]
    pub thinking: Option<Value>,
    #[schema(ignore)]
    pub container: Option<Value>,
    #[schema(ignore)]
    pub mcp_servers: Option<Value>,
    #[schema(ignore)]
    pub context_management: Option<Value>,
}

/// A prompt whose tokens are counted.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
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
    pub cache_control: Option<CacheControl>,
    /// Has no effect on the prompt.
    pub output_config: Option<OutputConfig>,
    #[schema(ignore)]
    pub thinking: Option<Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    pub format: Option<OutputFormat>,
    #[schema(ignore)]
    pub effort: Option<Value>,
}

/// Format of the answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct ClientTool {
    /// 1 to 64 letters, digits, `_` and `-`
    pub name: String,
    pub description: Option<String>,
    /// JSON Schema of the input.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    pub strict: Option<bool>,
    pub cache_control: Option<CacheControl>,
}

/// Whether tools are called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// End user of this request, for the log.
    pub user_id: Option<String>,
}

impl MessagesRequest {
    pub(crate) fn request(&self) -> Result<Request, ApiError> {
        self.refuse_unsupported()?;
        let default = Sampling::default();
        let request = Request {
            sampling: Sampling {
                temperature: self.temperature.unwrap_or(default.temperature),
                top_p: self.top_p.unwrap_or(default.top_p),
                top_k: self.top_k.unwrap_or(default.top_k),
                ..default
            },
            max_tokens: Some(self.max_tokens),
            unset: fields::unset_params(self.temperature, self.top_p, Some(self.max_tokens)),
            stop: self.stop_sequences.clone().unwrap_or_default(),
            output_format: shape(self.output_config.as_ref())?,
            tools: tools(self.tools.as_deref(), self.tool_choice.as_ref())?,
            ..Request::new(Prompt::Messages(messages(self.system.as_ref(), &self.messages)?))
        };
        Ok(fields::with_seed(request, None, 1))
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        if let Some(tier) = self.service_tier.as_deref().filter(|tier| !["auto", "standard_only"].contains(tier)) {
            let message = format!("service_tier is {tier:?}; the only tier is auto or standard_only");
            return Err(ApiError::invalid_param("service_tier", message));
        }
        refuse_thinking(self.thinking.as_ref())?;
        refuse("container", self.container.as_ref(), "this server does not run tools")?;
        refuse("mcp_servers", self.mcp_servers.as_ref(), "this server does not run tools")?;
        refuse("context_management", self.context_management.as_ref(), "omit old messages yourself")
    }
}

impl CountTokensRequest {
    /// Returns the prompt as an answer would start with it.
    pub(crate) fn prompt(&self) -> Result<(Prompt, Tools), ApiError> {
        refuse_thinking(self.thinking.as_ref())?;
        shape(self.output_config.as_ref())?;
        let messages = messages(self.system.as_ref(), &self.messages)?;
        Ok((Prompt::Messages(messages), tools(self.tools.as_deref(), self.tool_choice.as_ref())?))
    }
}

fn shape(config: Option<&OutputConfig>) -> Result<Option<ruvllm_runtime::OutputFormat>, ApiError> {
    let Some(OutputConfig { format, effort }) = config else { return Ok(None) };
    refuse("output_config.effort", effort.as_ref(), "every token of an answer takes the same effort")?;
    Ok(format
        .as_ref()
        .map(|OutputFormat::JsonSchema { schema }| ruvllm_runtime::OutputFormat::relaxed_schema(closed(schema))))
}

fn refuse_thinking(thinking: Option<&Value>) -> Result<(), ApiError> {
    match thinking.and_then(|thinking| thinking.get("type")).and_then(Value::as_str) {
        Some("disabled") => Ok(()),
        _ => refuse("thinking", thinking, "the models of this server do not think separately from their answers"),
    }
}

fn tools(tools: Option<&[Value]>, choice: Option<&ToolChoiceField>) -> Result<Tools, ApiError> {
    let tool = |tool: &Typed<'_>| match tool.kind {
        None | Some("custom") => {
            let ClientTool { name, description, input_schema, strict, .. } = tool.read()?;
            Ok(Tool { name, description, parameters: input_schema, strictness: Strictness::of_flag(strict) })
        }
        Some(_) => Err(tool.unsupported("tools", "custom (this server does not run tools)")),
    };
    let tools = Typed::list(tools.unwrap_or_default(), "tools")?;
    let definitions = tools.iter().map(tool).collect::<Result<Vec<Tool>, ApiError>>()?;
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

    fn request(extra: Value) -> Result<Request, ApiError> {
        let mut body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let request: MessagesRequest = parse(body.to_string().as_bytes())?;
        request.request()
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
            let tools = request(json!({"tools": tool, "tool_choice": choice})).unwrap().tools;
            assert_eq!((tools.choice, tools.are_parallel), (expected, are_parallel), "{choice}");
            assert_eq!(tools.definitions[0].parameters, json!({"type": "object"}));
        }
        check_refused(json!({"tool_choice": {"type": "any"}}), "tool_choice");
        check_refused(json!({"tool_choice": {"type": "tool"}}), "tool_choice.name");
    }

    #[test]
    fn what_is_not_supported_is_named() {
        check_refused(json!({"thinking": {"type": "enabled", "budget_tokens": 9}}), "thinking");
        check_refused(json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type");
        check_refused(json!({"tools": [{"name": "f"}]}), "tools[0].input_schema");
        check_refused(json!({"service_tier": "gold"}), "service_tier");
        check_refused(json!({"output_config": {"effort": "low"}}), "output_config.effort");
        check_refused(json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema");
        check_refused(json!({"system": [{"type": "image"}]}), "system[0].type");
        check_refused(json!({"max_token": 5}), "max_token");
        assert!(request(json!({"thinking": {"type": "disabled"}, "cache_control": {"type": "ephemeral"}})).is_ok());
    }
}
