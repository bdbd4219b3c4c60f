//! Tools in OpenAI's format.

use ruvllm_runtime::{Strictness, Tool, ToolChoice, Tools};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ToolField {
    /// `function`
    #[serde(rename = "type")]
    pub kind: String,
    pub function: FunctionField,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct FunctionField {
    /// 1 to 64 letters, digits, `_` and `-`
    pub name: String,
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Whether a schema that cannot be enforced completely is refused.
    pub strict: Option<bool>,
}

/// Whether tools are called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": \"...\"}}"
)]
pub enum ToolChoiceField {
    Mode(ToolMode),
    Named(NamedTool),
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    Auto,
    None,
    Required,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct NamedTool {
    /// `function`
    #[serde(rename = "type")]
    pub kind: String,
    pub function: NamedFunction,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct NamedFunction {
    pub name: String,
}

pub(crate) fn tools(
    tools: Option<&[ToolField]>,
    choice: Option<&ToolChoiceField>,
    parallel: Option<bool>,
) -> Result<Tools, ApiError> {
    let tools = tools.unwrap_or_default();
    let one = |(index, tool): (usize, &ToolField)| {
        check_kind(&tool.kind, &format!("tools[{index}].type"))?;
        let FunctionField { name, description, parameters, strict } = &tool.function;
        Ok(Tool {
            name: name.clone(),
            description: description.clone(),
            parameters: parameters.clone().unwrap_or(Value::Null),
            strictness: Strictness::of_flag(*strict),
        })
    };
    let choice = match choice {
        None | Some(ToolChoiceField::Mode(ToolMode::Auto)) => ToolChoice::Auto,
        Some(ToolChoiceField::Mode(ToolMode::None)) => ToolChoice::None,
        Some(ToolChoiceField::Mode(ToolMode::Required)) => ToolChoice::Required,
        Some(ToolChoiceField::Named(named)) => {
            check_kind(&named.kind, "tool_choice.type")?;
            ToolChoice::Named(named.function.name.clone())
        }
    };
    if tools.is_empty() && matches!(choice, ToolChoice::Required | ToolChoice::Named(_)) {
        return Err(ApiError::invalid_param("tool_choice", "tool_choice requires a call, but there are no tools"));
    }
    let definitions = tools.iter().enumerate().map(one).collect::<Result<_, ApiError>>()?;
    Ok(Tools { definitions, choice, are_parallel: parallel })
}

fn check_kind(kind: &str, param: &str) -> Result<(), ApiError> {
    if kind == "function" {
        return Ok(());
    }
    Err(ApiError::invalid_param(param, format!("tools of the type {kind:?} are not supported; use function")))
}
