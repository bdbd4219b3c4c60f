//! `format` and `think`.

use ruvllm_runtime::{OutputFormat, closed};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::reasoning::ReasoningParam;
use crate::error::ApiError;

/// Whether the model reasons before it answers, or how much: `low`, `medium` or `high`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected true, false, \"low\", \"medium\" or \"high\"")]
pub enum Think {
    Is(bool),
    Effort(String),
}

pub(super) fn reasoning(think: Option<&Think>) -> Result<ReasoningParam, ApiError> {
    match think {
        None => Ok(ReasoningParam::default()),
        Some(Think::Is(true)) => Ok(ReasoningParam::on("think", None)),
        Some(Think::Is(false)) => Ok(ReasoningParam::off("think")),
        Some(Think::Effort(effort)) => ReasoningParam::of_effort("think", Some(effort)),
    }
}

/// Returns the format of the answer: `json`, or a JSON schema.
pub(super) fn output_format(format: Option<&Value>) -> Result<Option<OutputFormat>, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(OutputFormat::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(OutputFormat::relaxed_schema(closed(schema)))),
        Some(_) => Err(ApiError::invalid_param("format", "format must be \"json\" or a JSON schema")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_format_is_json_or_a_schema() {
        assert_eq!(output_format(None).unwrap(), None);
        assert_eq!(output_format(Some(&json!(""))).unwrap(), None);
        assert_eq!(output_format(Some(&json!("json"))).unwrap(), Some(OutputFormat::JsonObject));
        assert!(matches!(output_format(Some(&json!({"type": "object"}))), Ok(Some(OutputFormat::JsonSchema { .. }))));
        for wrong in [json!("yaml"), json!(7), json!([]), json!(true)] {
            assert_eq!(output_format(Some(&wrong)).unwrap_err().param.as_deref(), Some("format"), "{wrong}");
        }
    }
}
