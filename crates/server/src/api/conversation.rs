//! Assembles a conversation from the parts that clients send: texts, tool calls and their results.

use std::collections::HashMap;

use ruvllm_runtime::{Message, ToolCall};

/// Messages in order.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    /// Names of called tools, by id of the call.
    tools: HashMap<String, String>,
    bytes: usize,
}

/// The result of a call that was never made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownCall;

impl Conversation {
    /// Continues a conversation.
    pub(crate) fn after(messages: &[Message]) -> Self {
        let calls = messages.iter().flat_map(|message| &message.tool_calls);
        Self {
            tools: calls.map(|call| (call.id.clone(), call.name.clone())).collect(),
            bytes: messages.iter().map(message_bytes).sum(),
            messages: messages.to_vec(),
        }
    }

    pub(crate) fn say(&mut self, role: &str, text: &str) {
        self.push(Message::new(role, text));
    }

    /// Appends to the last message if it has the same role: some APIs and many chat templates require alternating
    /// roles.
    pub(crate) fn append_message(&mut self, role: &str, text: &str) {
        match self.messages.last_mut() {
            Some(last) if last.role == role => {
                if !last.content.is_empty() {
                    last.content.push('\n');
                }
                last.content.push_str(text);
                self.bytes += text.len() + 1;
            }
            _ => self.say(role, text),
        }
    }

    /// Adds a text of the assistant, to the message with its reasoning if that came last.
    pub(crate) fn answer(&mut self, text: &str) {
        match self.messages.last_mut() {
            Some(last) if last.reasoning.is_some() && last.content.is_empty() && last.tool_calls.is_empty() => {
                last.content.push_str(text);
                self.bytes += text.len();
            }
            _ => self.say("assistant", text),
        }
    }

    /// Adds what the assistant wrote for itself before it answered.
    pub(crate) fn reason(&mut self, text: &str) {
        self.push(Message { reasoning: Some(text.to_owned()), ..Message::new("assistant", "") });
    }

    /// Adds a tool call of the assistant, to its last message if that is its own.
    pub(crate) fn call(&mut self, call: ToolCall) {
        if self.messages.last().is_none_or(|last| last.role != "assistant") {
            self.say("assistant", "");
        }
        self.bytes += call_bytes(&call);
        self.tools.insert(call.id.clone(), call.name.clone());
        self.messages.last_mut().expect("a message was added if there was none").tool_calls.push(call);
    }

    /// Adds the result of a call.
    pub(crate) fn result(&mut self, call_id: &str, text: &str) -> Result<(), UnknownCall> {
        let name = self.tools.get(call_id).ok_or(UnknownCall)?.clone();
        let tool_call_id = Some(call_id.to_owned());
        self.push(Message { tool_call_id, name: Some(name), ..Message::new("tool", text) });
        Ok(())
    }

    /// Returns its size in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(crate) fn into_messages(self) -> Vec<Message> {
        self.messages
    }

    fn push(&mut self, message: Message) {
        self.bytes += message_bytes(&message);
        self.messages.push(message);
    }
}

fn message_bytes(message: &Message) -> usize {
    let names = [&message.tool_call_id, &message.name, &message.reasoning]
        .into_iter()
        .flatten()
        .map(String::len)
        .sum::<usize>();
    let calls = message.tool_calls.iter().map(call_bytes).sum::<usize>();
    size_of::<Message>() + message.role.len() + message.content.len() + names + calls
}

fn call_bytes(call: &ToolCall) -> usize {
    // Its id and name are stored again to find the tool of a result.
    size_of::<ToolCall>() + 2 * (call.id.len() + call.name.len()) + call.arguments.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> ToolCall {
        ToolCall { id: id.to_owned(), name: format!("tool of {id}"), arguments: "{}".to_owned() }
    }

    #[test]
    fn calls_join_what_the_assistant_said_and_results_know_their_tool() {
        let mut conversation = Conversation::default();
        conversation.say("user", "Look.");
        conversation.call(call("a"));
        conversation.call(call("b"));
        assert_eq!(conversation.result("c", "?"), Err(UnknownCall));
        conversation.result("a", "seen").unwrap();
        let mut later = Conversation::after(conversation.messages());
        assert_eq!(later.bytes(), conversation.bytes());
        later.result("b", "seen too").unwrap();
        let messages = later.into_messages();
        let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
        assert_eq!(messages[1].tool_calls, [call("a"), call("b")]);
        assert_eq!(messages[3].name.as_deref(), Some("tool of b"));
    }

    #[test]
    fn turns_of_one_role_become_one_message() {
        let mut conversation = Conversation::default();
        for (role, text) in [("user", "One."), ("user", "Two."), ("assistant", "Three."), ("user", "Four.")] {
            conversation.append_message(role, text);
        }
        let contents: Vec<&str> = conversation.messages().iter().map(|message| message.content.as_str()).collect();
        assert_eq!(contents, ["One.\nTwo.", "Three.", "Four."]);
    }
}
