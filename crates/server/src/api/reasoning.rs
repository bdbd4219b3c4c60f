//! How clients ask a model to reason before it answers: on, off, an effort, or a number of tokens.

use ruvllm_runtime::Request;
use serde_json::{Map, Value};

use crate::api::generation::Generation;
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// Efforts, with the tokens that a model may reason. Templates that know efforts are told the name as well.
const EFFORTS: [(&str, Option<usize>); 7] = [
    ("none", Some(0)),
    ("minimal", Some(256)),
    ("low", Some(1024)),
    ("medium", Some(4096)),
    ("high", Some(16_384)),
    ("xhigh", None),
    ("max", None),
];

/// What a request says about reasoning.
#[derive(Debug, Default)]
pub(crate) struct ReasoningParam {
    /// The parameter that says it.
    name: &'static str,
    is_on: Option<bool>,
    effort: Option<&'static str>,
    budget: Option<usize>,
}

impl ReasoningParam {
    pub(crate) fn on(name: &'static str, budget: Option<usize>) -> Self {
        Self { name, is_on: Some(true), effort: None, budget }
    }

    pub(crate) fn off(name: &'static str) -> Self {
        Self { name, is_on: Some(false), effort: None, budget: Some(0) }
    }

    /// Reads an effort; unset if there is none.
    pub(crate) fn of_effort(name: &'static str, effort: Option<&str>) -> Result<Self, ApiError> {
        let Some(effort) = effort else { return Ok(Self::default()) };
        let known = EFFORTS.iter().find(|(known, _)| *known == effort);
        let (effort, budget) = known.ok_or_else(|| {
            let known: Vec<&str> = EFFORTS.iter().map(|(effort, _)| *effort).collect();
            let shown: String = effort.chars().take(64).collect();
            ApiError::invalid_param(name, format!("{name} is {shown:?}; use one of {}", known.join(", ")))
        })?;
        Ok(match *effort {
            "none" => Self::off(name),
            effort => Self { name, is_on: Some(true), effort: Some(effort), budget: *budget },
        })
    }

    /// Puts it into a request. Variables that the client gave to the template itself stay.
    pub(crate) fn apply(&self, request: &mut Request) {
        request.reasoning_budget = self.budget;
        let variables = &mut request.template_variables;
        let mut set = |name: &str, value: Value| {
            variables.entry(name).or_insert(value);
        };
        if let Some(is_on) = self.is_on {
            // Qwen3 and most others know the first name, DeepSeek and Granite the second.
            set("enable_thinking", is_on.into());
            set("thinking", is_on.into());
        }
        if let Some(effort) = self.effort {
            set("reasoning_effort", effort.into());
        }
    }

    /// Notes the parameter if it asks a model to reason that does not, or within a budget that its backend cannot hold.
    pub(crate) fn note(&self, generation: &Generation, ignored: &IgnoredParams) -> Result<(), ApiError> {
        match self.is_on {
            Some(true) if !generation.reasons() => ignored.note(self.name, "this model does not reason"),
            Some(true) if self.budget.is_some() && generation.chooses_tokens() => {
                ignored.note(self.name, "the backend of this model chooses tokens by itself, so no budget holds")
            }
            _ => Ok(()),
        }
    }
}

/// Reads `chat_template_kwargs`: variables for the model's template.
pub(crate) fn template_variables(given: Option<&Map<String, Value>>) -> Result<Map<String, Value>, ApiError> {
    /// The server's own.
    const RESERVED: [&str; 4] = ["messages", "tools", "add_generation_prompt", "strftime_now"];
    let given = given.cloned().unwrap_or_default();
    if let Some(name) = RESERVED.into_iter().find(|name| given.contains_key(*name)) {
        let message = format!("{name} cannot be set: it comes from the request itself");
        return Err(ApiError::invalid_param(format!("chat_template_kwargs.{name}"), message));
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use ruvllm_runtime::Prompt;
    use serde_json::json;

    use super::*;

    #[test]
    fn efforts_are_budgets_and_variables_of_the_template() {
        let apply = |effort: &str| {
            let mut request = Request::new(Prompt::Text(String::new()));
            ReasoningParam::of_effort("reasoning_effort", Some(effort)).unwrap().apply(&mut request);
            (request.reasoning_budget, Value::Object(request.template_variables))
        };
        let low = json!({"enable_thinking": true, "thinking": true, "reasoning_effort": "low"});
        assert_eq!(apply("low"), (Some(1024), low));
        assert_eq!(apply("none"), (Some(0), json!({"enable_thinking": false, "thinking": false})));
        assert_eq!(apply("max").0, None);
        let error = ReasoningParam::of_effort("reasoning_effort", Some("huge")).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("reasoning_effort"));
    }

    #[test]
    fn variables_of_the_template_cannot_replace_the_conversation() {
        let given = |value: Value| template_variables(value.as_object());
        assert!(given(json!({"enable_thinking": false})).is_ok());
        assert!(given(json!({"messages": []})).is_err());
    }
}
