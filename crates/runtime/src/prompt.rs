//! What a request says to the model.

use serde_json::{Value, json};

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the model's chat template knows.
    pub role: String,
    pub content: String,
    /// Of the assistant: the tools that it called.
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool: the call that this is the result of.
    pub tool_call_id: Option<String>,
    /// Of a tool: which one. Otherwise who speaks, for templates that show it.
    pub name: Option<String>,
}

/// A tool that the model wants to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Tells calls of a conversation apart.
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

    /// The result of a tool call.
    pub fn tool(call: &ToolCall, result: &str) -> Self {
        let (tool_call_id, name) = (Some(call.id.clone()), Some(call.name.clone()));
        Self { tool_call_id, name, ..Self::new("tool", result) }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut json = json!({ "role": self.role, "content": self.content });
        if !self.tool_calls.is_empty() {
            json["tool_calls"] = self.tool_calls.iter().map(ToolCall::to_json).collect();
        }
        for (key, value) in [("tool_call_id", &self.tool_call_id), ("name", &self.name)] {
            if let Some(value) = value {
                json[key] = value.as_str().into();
            }
        }
        json
    }
}

impl ToolCall {
    fn to_json(&self) -> Value {
        json!({ "id": self.id, "type": "function", "function": { "name": self.name, "arguments": self.arguments } })
    }
}

/// The beginning of a text, in one of three forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A conversation, put into the model's own chat format.
    Messages(Vec<Message>),
    /// Plain text to continue; special tokens in it are text like any other.
    Text(String),
    /// Token ids, as they are.
    Tokens(Vec<u32>),
}
