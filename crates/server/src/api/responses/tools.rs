//! `POST /v1/responses`: tools of several kinds, offered to the model as functions, and its calls turned back into theirs.

use std::collections::HashMap;

use ruvllm_runtime::{Strictness, Tool, ToolCall, ToolChoice, Tools};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::typed::Typed;
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// The argument that holds the input of a custom tool.
pub(crate) const CUSTOM_INPUT: &str = "input";
/// The name of the shell tool, which its clients do not name.
pub(crate) const LOCAL_SHELL: &str = "local_shell";

/// A tool that the model may call. The server itself calls none; tools that other servers would run are left out and named.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToolItem {
    Function(FlatFunction),
    /// Tools under a common name.
    Namespace(NamespaceTool),
    /// A tool whose input is text.
    Custom(CustomTool),
    /// A shell that the client runs.
    LocalShell {},
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct FlatFunction {
    /// 1 to 64 letters, digits, `_` and `-`
    name: String,
    description: Option<String>,
    /// JSON Schema of the arguments.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
    /// Whether a schema that cannot be enforced completely is refused.
    strict: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct NamespaceTool {
    name: String,
    #[expect(dead_code, reason = "the descriptions of its tools are shown to the model")]
    description: Option<String>,
    #[schema(value_type = Vec<FlatFunction>)]
    tools: Vec<Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CustomTool {
    name: String,
    description: Option<String>,
    #[schema(value_type = Option<Object>)]
    format: Option<CustomFormat>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum CustomFormat {
    Text {},
    Grammar { syntax: String, definition: String },
}

/// How a client sees a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Function,
    Namespaced { namespace: String, name: String },
    Custom,
    LocalShell,
}

/// The tools of a request, by the names that the model knows.
#[derive(Debug, Default)]
pub(crate) struct OfferedTools {
    pub tools: Tools,
    kinds: HashMap<String, CallKind>,
}

/// Returns the name under which a tool of a namespace is offered.
pub(crate) fn offered_name(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}__{name}"))
}

impl OfferedTools {
    pub(crate) fn new(
        given: &[Value],
        choice: Option<&Value>,
        are_parallel: Option<bool>,
        ignored: &IgnoredParams,
    ) -> Result<Self, ApiError> {
        let mut offered = Self::default();
        for tool in Typed::list(given, "tools", ignored)? {
            offered.add(&tool, ignored)?;
        }
        offered.tools.are_parallel = are_parallel;
        offered.choose(choice, ignored)?;
        Ok(offered)
    }

    /// Returns how the client sees a call of the model.
    pub(crate) fn kind(&self, call: &ToolCall) -> CallKind {
        self.kinds.get(&call.name).cloned().unwrap_or(CallKind::Function)
    }

    fn add(&mut self, tool: &Typed<'_>, ignored: &IgnoredParams) -> Result<(), ApiError> {
        match tool.kind {
            Some("function") => self.offer(function(tool.read()?), CallKind::Function),
            Some("namespace") => {
                let NamespaceTool { name: namespace, tools, .. } = tool.read()?;
                for inner in Typed::list(&tools, &format!("{}.tools", tool.place), ignored)? {
                    let Some("function") = inner.kind else {
                        inner.ignore("only functions can be offered")?;
                        continue;
                    };
                    let mut function = function(inner.read()?);
                    let name = std::mem::take(&mut function.name);
                    function.name = offered_name(Some(&namespace), &name);
                    self.offer(function, CallKind::Namespaced { namespace: namespace.clone(), name });
                }
            }
            Some("custom") => {
                let CustomTool { name, description, format } = tool.read()?;
                let mut input = json!({ "type": "string" });
                match format {
                    Some(CustomFormat::Grammar { syntax, definition }) if syntax == "regex" => {
                        input["pattern"] = format!("^(?:{definition})$").into();
                    }
                    Some(CustomFormat::Grammar { .. }) => {
                        ignored.note(&format!("{}.format", tool.place), "grammars of tools are not enforced")?;
                    }
                    Some(CustomFormat::Text {}) | None => {}
                }
                let parameters =
                    json!({ "type": "object", "properties": { CUSTOM_INPUT: input }, "required": [CUSTOM_INPUT] });
                let strictness = Strictness::Relaxed;
                self.offer(Tool { name, description, parameters, strictness }, CallKind::Custom);
            }
            Some("local_shell") => self.offer(local_shell(), CallKind::LocalShell),
            Some(_) => tool.ignore("this server does not run tools")?,
            None => return Err(tool.unsupported("tools", "function, namespace, custom, local_shell")),
        }
        Ok(())
    }

    fn offer(&mut self, tool: Tool, kind: CallKind) {
        self.kinds.insert(tool.name.clone(), kind);
        self.tools.definitions.push(tool);
    }

    fn choose(&mut self, choice: Option<&Value>, ignored: &IgnoredParams) -> Result<(), ApiError> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
            namespace: Option<String>,
        }
        #[derive(Deserialize)]
        struct Allowed {
            mode: Option<Value>,
            tools: Vec<Value>,
        }
        self.tools.choice = match choice {
            None | Some(Value::Null) => ToolChoice::Auto,
            Some(Value::String(mode)) => match mode.as_str() {
                "auto" => ToolChoice::Auto,
                "none" => ToolChoice::None,
                "required" => ToolChoice::Required,
                mode => {
                    let message = format!("tool_choice is {mode:?}; use auto, none, required or a tool");
                    return Err(ApiError::invalid_param("tool_choice", message));
                }
            },
            Some(choice) => {
                let choice = Typed::new(choice, "tool_choice".to_owned(), ignored)?;
                match choice.kind {
                    Some("function" | "custom") => {
                        let Named { name, namespace } = choice.read()?;
                        ToolChoice::Named(offered_name(namespace.as_deref(), &name))
                    }
                    Some("local_shell") => ToolChoice::Named(LOCAL_SHELL.to_owned()),
                    Some("allowed_tools") => {
                        let Allowed { mode, tools } = choice.read()?;
                        let names: Vec<&str> = tools.iter().filter_map(|tool| tool.get("name")?.as_str()).collect();
                        self.tools.definitions.retain(|tool| names.contains(&tool.name.as_str()));
                        return self.choose(mode.as_ref().filter(|mode| mode.is_string()), ignored);
                    }
                    _ => return Err(choice.unsupported("choices", "function, custom, local_shell, allowed_tools")),
                }
            }
        };
        let needs_a_tool = matches!(self.tools.choice, ToolChoice::Required | ToolChoice::Named(_));
        if needs_a_tool && self.tools.definitions.is_empty() {
            let message = "tool_choice requires a call, but no tool can be offered";
            return Err(ApiError::invalid_param("tool_choice", message));
        }
        Ok(())
    }
}

fn function(function: FlatFunction) -> Tool {
    let FlatFunction { name, description, parameters, strict } = function;
    Tool { name, description, parameters: parameters.unwrap_or(Value::Null), strictness: Strictness::of_flag(strict) }
}

fn local_shell() -> Tool {
    Tool {
        name: LOCAL_SHELL.to_owned(),
        description: Some("Runs a command on the user's machine and returns its output.".to_owned()),
        parameters: json!({
            "type": "object",
            "properties": {
                "command": { "type": "array", "items": { "type": "string" }, "minItems": 1 },
                "working_directory": { "type": "string" },
                "timeout_ms": { "type": "integer", "minimum": 1 },
            },
            "required": ["command"],
        }),
        strictness: Strictness::Relaxed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(tools: &Value, choice: &Value) -> Result<(OfferedTools, Vec<String>), ApiError> {
        let ignored = IgnoredParams::default();
        let offered = OfferedTools::new(tools.as_array().unwrap(), Some(choice), None, &ignored)?;
        Ok((offered, ignored.all()))
    }

    /// The kinds that Codex sends.
    fn kinds() -> Value {
        json!([
            {"type": "function", "name": "exec", "strict": false, "parameters": {"type": "object"}},
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "close"}]},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            {"type": "local_shell"},
            {"type": "web_search", "external_web_access": false},
        ])
    }

    #[test]
    fn every_kind_that_a_model_can_call_is_offered_and_the_others_are_named() {
        let (offered, ignored) = offered(&kinds(), &json!("auto")).unwrap();
        let names: Vec<&str> = offered.tools.definitions.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["exec", "agents__close", "patch", "local_shell"]);
        assert_eq!(ignored, ["tools[2].format", "tools[4]:web_search"]);
        let kind =
            |name: &str| offered.kind(&ToolCall { id: String::new(), name: name.to_owned(), arguments: String::new() });
        assert_eq!(kind("exec"), CallKind::Function);
        assert_eq!(kind("agents__close"), CallKind::Namespaced { namespace: "agents".into(), name: "close".into() });
        assert_eq!((kind("patch"), kind("local_shell")), (CallKind::Custom, CallKind::LocalShell));
    }

    #[test]
    fn a_choice_names_one_or_several_of_them() {
        let choice = |choice: Value| offered(&kinds(), &choice).unwrap().0.tools;
        let named = choice(json!({"type": "custom", "name": "patch"}));
        assert_eq!(named.choice, ToolChoice::Named("patch".to_owned()));
        let several =
            json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "exec"}]});
        let several = choice(several);
        assert_eq!((several.choice, several.definitions.len()), (ToolChoice::Required, 1));
        let error = offered(&json!([{"type": "web_search"}]), &json!("required")).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tool_choice"));
        assert!(offered(&json!([{"name": "f"}]), &json!("auto")).is_err());
    }
}
