//! Messages and tools in Ollama's format: arguments are objects, and results name their tool instead of a call.

use ruvllm_runtime::{Message, Strictness, Tool, ToolCall, ToolChoice, Tools};
use ruvllm_store::ModelSettings;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;

/// One message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaMessage {
    /// `system`, `user`, `assistant` or `tool`
    pub role: String,
    pub content: Option<String>,
    /// What the assistant wrote for itself before.
    pub thinking: Option<String>,
    /// Refused: the models of this server read text only.
    #[schema(value_type = Option<Vec<String>>)]
    pub images: Option<Vec<Value>>,
    pub tool_calls: Option<Vec<OllamaCall>>,
    /// The tool that a message with the role `tool` is the result of.
    pub tool_name: Option<String>,
    /// The same under its old name.
    pub name: Option<String>,
    pub tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaCall {
    pub id: Option<String>,
    #[expect(dead_code, reason = "there are only functions; clients of other APIs say so")]
    #[serde(rename = "type")]
    #[schema(value_type = Option<String>)]
    pub kind: Option<Value>,
    pub function: OllamaFunctionCall,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaFunctionCall {
    #[expect(dead_code, reason = "the order of the list counts")]
    pub index: Option<usize>,
    pub name: String,
    /// A JSON object.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaTool {
    /// `function`
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub function: OllamaFunction,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaFunction {
    /// 1 to 64 letters, digits, `_` and `-`
    pub name: String,
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
}

pub(crate) fn tools(given: Option<&[OllamaTool]>) -> Result<Tools, ApiError> {
    let one = |(index, tool): (usize, &OllamaTool)| match tool.kind.as_deref() {
        None | Some("function") => {
            let OllamaFunction { name, description, parameters } = &tool.function;
            let parameters = parameters.clone().unwrap_or(Value::Null);
            Ok(Tool {
                name: name.clone(),
                description: description.clone(),
                parameters,
                strictness: Strictness::Relaxed,
            })
        }
        Some(kind) => {
            let kind: String = kind.chars().take(64).collect();
            let message = format!("tools of the type {kind:?} are not supported; use function");
            Err(ApiError::invalid_param(format!("tools[{index}].type"), message))
        }
    };
    let definitions = given.unwrap_or_default().iter().enumerate().map(one).collect::<Result<_, _>>()?;
    Ok(Tools { definitions, choice: ToolChoice::Auto, are_parallel: None })
}

/// Converts a conversation. Ids are given to calls that have none, and to the results that follow them.
pub(crate) fn messages(given: &[OllamaMessage]) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    // Calls without a result yet: id and name.
    let mut open: Vec<(String, String)> = Vec::new();
    let mut count = 0;
    for (index, message) in given.iter().enumerate() {
        let place = format!("messages[{index}]");
        let mut converted = message.convert(&place)?;
        for (i, call) in message.tool_calls.iter().flatten().enumerate() {
            let id = call.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{count}"));
            count += 1;
            let call = call.convert(id, &format!("{place}.tool_calls[{i}]"))?;
            open.push((call.id.clone(), call.name.clone()));
            converted.tool_calls.push(call);
        }
        if converted.role == "tool" {
            message.find_call(&mut converted, &mut open);
        }
        messages.push(converted);
    }
    Ok(messages)
}

impl OllamaMessage {
    fn convert(&self, place: &str) -> Result<Message, ApiError> {
        let role = match self.role.as_str() {
            role @ ("system" | "user" | "assistant" | "tool") => role,
            role => {
                let role: String = role.chars().take(64).collect();
                let message = format!("unknown role {role:?}; use system, user, assistant or tool");
                return Err(ApiError::invalid_param(format!("{place}.role"), message));
            }
        };
        if self.images.as_ref().is_some_and(|images| !images.is_empty()) {
            return Err(no_images(format!("{place}.images")));
        }
        if role != "assistant" && self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()) {
            let message = "only messages of the assistant can have tool_calls";
            return Err(ApiError::invalid_param(format!("{place}.tool_calls"), message));
        }
        let reasoning = self.thinking.clone().filter(|text| role == "assistant" && !text.is_empty());
        Ok(Message { reasoning, ..Message::new(role, self.content.as_deref().unwrap_or_default()) })
    }

    /// Finds the call that a result is of: by id, by the tool's name, or the first one without a result.
    fn find_call(&self, result: &mut Message, open: &mut Vec<(String, String)>) {
        let by_id = |(id, _): &(String, String)| Some(id) == self.tool_call_id.as_ref();
        let tool = self.tool_name.as_ref().or(self.name.as_ref());
        let by_name = |(_, name): &(String, String)| Some(name) == tool;
        let is_unnamed = self.tool_call_id.is_none() && tool.is_none();
        let found = open.iter().position(by_id).or_else(|| open.iter().position(by_name));
        let found = found.or_else(|| (is_unnamed && !open.is_empty()).then_some(0));
        let (id, name) = found.map(|index| open.remove(index)).unzip();
        result.tool_call_id = self.tool_call_id.clone().or(id);
        result.name = tool.cloned().or(name);
    }
}

impl OllamaCall {
    fn convert(&self, id: String, place: &str) -> Result<ToolCall, ApiError> {
        let OllamaFunctionCall { name, arguments, .. } = &self.function;
        let arguments = match arguments {
            None | Some(Value::Null) => "{}".to_owned(),
            Some(object @ Value::Object(_)) => object.to_string(),
            // Clients that know OpenAI's format send the object as text.
            Some(Value::String(text)) if serde_json::from_str::<serde_json::Map<String, Value>>(text).is_ok() => {
                text.clone()
            }
            Some(_) => {
                let message = "the arguments of a tool call must be a JSON object";
                return Err(ApiError::invalid_param(format!("{place}.function.arguments"), message));
            }
        };
        Ok(ToolCall { id, name: name.clone(), arguments })
    }
}

pub(crate) fn no_images(param: impl Into<String>) -> ApiError {
    let message = "images are not supported: the models of this server read text only";
    ApiError::invalid_param(param, message).with_code("unsupported_parameter")
}

/// Begins a conversation with what its model says. A system message of the client takes the place of the model's.
pub(crate) fn begin(mut messages: Vec<Message>, settings: &ModelSettings) -> Vec<Message> {
    if settings.system.is_none() && settings.messages.is_empty() {
        return messages;
    }
    let leading = messages.iter().take_while(|message| message.role == "system").count();
    let rest = messages.split_off(leading);
    let is_wanted = |role: &str| leading == 0 || role != "system";
    let system = settings.system.as_deref().filter(|text| is_wanted("system") && !text.is_empty());
    let first = settings.messages.iter().filter(|message| is_wanted(&message.role));
    let first = first.map(|message| Message::new(&message.role, &message.content));
    system.map(Message::system).into_iter().chain(messages).chain(first).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn convert(value: Value) -> Result<Vec<Message>, ApiError> {
        messages(&serde_json::from_value::<Vec<OllamaMessage>>(value).unwrap())
    }

    #[test]
    fn results_find_their_calls() {
        let made = convert(json!([
            {"role": "user", "content": "Go."},
            {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {"x": 1}}}, {"function": {"name": "b"}}]},
            {"role": "tool", "tool_name": "b", "content": "2"},
            {"role": "tool", "content": "1"},
        ]))
        .unwrap();
        let calls = &made[1].tool_calls;
        assert_eq!((calls[0].arguments.as_str(), calls[1].arguments.as_str()), (r#"{"x":1}"#, "{}"));
        assert_ne!(calls[0].id, calls[1].id);
        let result = |index: usize| (made[index].tool_call_id.clone(), made[index].name.clone());
        assert_eq!(result(2), (Some(calls[1].id.clone()), Some("b".to_owned())));
        assert_eq!(result(3), (Some(calls[0].id.clone()), Some("a".to_owned())));
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        for (value, param) in [
            (json!([{"role": "robot", "content": ""}]), "messages[0].role"),
            (json!([{"role": "user", "content": "", "images": ["aGk="]}]), "messages[0].images"),
            (json!([{"role": "user", "tool_calls": [{"function": {"name": "a"}}]}]), "messages[0].tool_calls"),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": [1]}}]}]),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            assert_eq!(convert(value.clone()).unwrap_err().param.as_deref(), Some(param), "{value}");
        }
    }

    #[test]
    fn a_model_begins_its_conversations_unless_the_client_does() {
        let settings: ModelSettings =
            serde_json::from_value(json!({"system": "Arr.", "messages": [{"role": "user", "content": "Ahoy"}]}))
                .unwrap();
        let roles = |messages: Vec<Message>| messages.into_iter().map(|message| message.content).collect::<Vec<_>>();
        assert_eq!(roles(begin(vec![Message::user("Hi")], &settings)), ["Arr.", "Ahoy", "Hi"]);
        let own = vec![Message::system("Be calm."), Message::user("Hi")];
        assert_eq!(roles(begin(own, &settings)), ["Be calm.", "Ahoy", "Hi"]);
    }
}
