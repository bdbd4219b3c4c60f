//! The ways in which models write tool calls.

use serde_json::{Value, json};

use super::calls::check_tools;
use super::{CallableTool, Tool, ToolCallMode, ToolCalls, ToolChoice};
use crate::grammar::{GrammarError, OutputFormat, closed};

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`, any number of them, in a template that knows
    /// tools: Hermes, Qwen and many others.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` and nothing else, in a template that knows tools: Llama 3.
    BareJson,
    /// Calls as in [`Self::Hermes`], for a template that knows no tools, or knows them in a way that we do not:
    /// tools are explained in a message, and calls and results become messages of plain text.
    Generic(Explanation),
}

/// Where a template that knows no tools has room to explain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explanation {
    SystemMessage,
    /// The template refuses system messages.
    FirstUserMessage,
}

pub(crate) const CALL_OPENS: &str = "<tool_call>";
pub(crate) const CALL_CLOSES: &str = "</tool_call>";

impl ToolFormat {
    /// Returns the format that a chat template was written for.
    pub fn of_template(source: &str) -> Self {
        let has = |part: &str| source.contains(part);
        let has_any = |parts: &[&str]| parts.iter().any(|part| source.contains(part));
        // Templates write these in their own string literals, where quotes may be escaped.
        let names_call = has_any(&[r#"{"name": "#, r#"{\"name\": "#, r#"{"name":"#, r#"{\"name\":"#]);
        let has_key = |key: &str| has(&format!("\"{key}\": ")) || has(&format!("\\\"{key}\\\": "));
        let knows_tools = has("tools") && has("tool_calls");
        // `<function=name>` is a format of its own inside the same tags.
        if knows_tools && names_call && has(CALL_OPENS) && has_key("arguments") && !has("<function=") {
            return Self::Hermes;
        }
        if knows_tools && names_call && has("ipython") && has_key("parameters") && !has("<function=") {
            return Self::BareJson;
        }
        let refuses_system = has("System role not supported") || !has("system") && has("raise_exception");
        Self::Generic(if refuses_system { Explanation::FirstUserMessage } else { Explanation::SystemMessage })
    }

    /// Returns whether the model was trained to write it.
    pub fn is_of_the_model(&self) -> bool {
        !matches!(self, Self::Generic(_))
    }

    /// Returns the output format of an answer that may call tools; `None` if any text will do.
    ///
    /// Schemas are checked when the output format is compiled, names here.
    pub fn output_format(
        &self,
        tools: &[Tool],
        choice: &ToolChoice,
        parallel: bool,
    ) -> Result<Option<OutputFormat>, GrammarError> {
        check_tools(tools)?;
        let (mode, tools) = match choice {
            ToolChoice::None => return Ok(None),
            ToolChoice::Auto if tools.is_empty() => return Ok(None),
            ToolChoice::Required if tools.is_empty() => return Err(GrammarError::NoTools),
            ToolChoice::Auto => (ToolCallMode::TextOrCalls, tools),
            ToolChoice::Required => (ToolCallMode::CallsOnly, tools),
            ToolChoice::Named(name) => {
                let named = tools.iter().position(|tool| tool.name == *name).ok_or_else(|| {
                    let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
                    GrammarError::UnknownTool { name: name.clone(), known: known.join(", ") }
                })?;
                (ToolCallMode::CallsOnly, &tools[named..=named])
            }
        };
        let tools = tools
            .iter()
            .map(|tool| {
                let refused = |error| GrammarError::Tool { name: tool.name.clone(), error: Box::new(error) };
                let schema = arguments_schema(&tool.parameters).map_err(refused)?;
                Ok(CallableTool { name: tool.name.clone(), schema, strictness: tool.strictness })
            })
            .collect::<Result<_, _>>()?;
        let is_parallel = parallel && *self != Self::BareJson;
        Ok(Some(OutputFormat::ToolCalls(ToolCalls { format: *self, tools, mode, is_parallel })))
    }

    /// Returns a name that is part of cache keys.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::BareJson => "bare_json",
            Self::Generic(Explanation::SystemMessage) => "generic_system_message",
            Self::Generic(Explanation::FirstUserMessage) => "generic_first_user_message",
        }
    }

    /// Returns the key under which a call has its arguments.
    pub(crate) fn arguments_key(&self) -> &'static str {
        match self {
            Self::BareJson => "parameters",
            Self::Hermes | Self::Generic(_) => "arguments",
        }
    }
}

/// Arguments are always an object, with no others than those that are listed.
fn arguments_schema(parameters: &Value) -> Result<Value, GrammarError> {
    let wrong = |problem: &str| GrammarError::Schema { pointer: "#".to_owned(), problem: problem.to_owned() };
    match parameters {
        // A tool that takes none.
        Value::Null => Ok(json!({"type": "object", "properties": {}, "additionalProperties": false})),
        Value::Bool(true) => Ok(json!({"type": "object"})),
        Value::Object(fields) => match fields.get("type") {
            None => {
                let mut fields = fields.clone();
                fields.insert("type".to_owned(), json!("object"));
                Ok(closed(&Value::Object(fields)))
            }
            Some(kind) if kind == "object" => Ok(closed(parameters)),
            Some(kind) => Err(wrong(&format!("must have the type \"object\", not {kind}"))),
        },
        _ => Err(wrong("must be an object")),
    }
}
