//! What a request says to the model.

use ruvllm_engine::TokenId;
use serde_json::{Value, json};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the model's chat template knows.
    pub role: String,
    pub content: String,
    /// What the assistant wrote for itself before. The template decides whether the model sees it again.
    pub reasoning: Option<String>,
    /// Tools that the assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// The call whose result a tool's message is.
    pub tool_call_id: Option<String>,
    /// The tool that a tool's message is from; otherwise the speaker, for templates that show it.
    pub name: Option<String>,
}

/// A tool that the model wants to be called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolCall {
    /// Distinguishes the calls of a conversation.
    pub id: String,
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

impl Message {
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned(), ..Self::default() }
    }

    pub fn system(content: &str) -> Self {
        Self::new("system", content)
    }

    pub fn user(content: &str) -> Self {
        Self::new("user", content)
    }

    pub fn assistant(content: &str) -> Self {
        Self::new("assistant", content)
    }

    /// Creates the message with the result of a tool call.
    pub fn tool(call: &ToolCall, result: &str) -> Self {
        let (tool_call_id, name) = (Some(call.id.clone()), Some(call.name.clone()));
        Self { tool_call_id, name, ..Self::new("tool", result) }
    }

    /// Returns the message in OpenAI's format, which chat templates read and sessions store.
    pub(crate) fn to_json(&self) -> Value {
        let mut json = json!({ "role": self.role, "content": self.content });
        if !self.tool_calls.is_empty() {
            json["tool_calls"] = self.tool_calls.iter().map(ToolCall::to_json).collect();
        }
        let named =
            [("tool_call_id", &self.tool_call_id), ("name", &self.name), ("reasoning_content", &self.reasoning)];
        for (key, value) in named {
            if let Some(value) = value {
                json[key] = value.as_str().into();
            }
        }
        json
    }

    /// Reads what [`Message::to_json`] wrote.
    pub fn from_json(json: &Value) -> Option<Self> {
        let text = |field: &str| json.get(field).and_then(Value::as_str).map(str::to_owned);
        let calls = json.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        Some(Self {
            role: text("role")?,
            content: text("content")?,
            reasoning: text("reasoning_content"),
            tool_calls: calls.map(ToolCall::from_json).collect::<Option<_>>()?,
            tool_call_id: text("tool_call_id"),
            name: text("name"),
        })
    }
}

impl ToolCall {
    fn to_json(&self) -> Value {
        json!({ "id": self.id, "type": "function", "function": { "name": self.name, "arguments": self.arguments } })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |field: &str| json.pointer(field).and_then(Value::as_str).map(str::to_owned);
        Some(Self { id: text("/id")?, name: text("/function/name")?, arguments: text("/function/arguments")? })
    }
}

/// The beginning of a text, in one of three forms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Prompt {
    /// A conversation, put into the model's own chat format.
    Messages(Vec<Message>),
    /// Plain text to continue; special tokens in it are text like any other.
    Text(String),
    /// Token ids, as they are.
    Tokens(Vec<TokenId>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were_stored() {
        let call = ToolCall { id: "1".into(), name: "f".into(), arguments: "{\"a\": 1}".into() };
        let asked = Message { tool_calls: vec![call.clone()], ..Message::assistant("") };
        let reasoned = Message { reasoning: Some("Hm.".into()), ..Message::assistant("Yes.") };
        for message in [Message::user("Grüße \u{1F600}"), asked, Message::tool(&call, "2"), reasoned] {
            assert_eq!(Message::from_json(&message.to_json()), Some(message));
        }
        assert_eq!(Message::from_json(&json!({ "role": 1 })), None);
    }
}
