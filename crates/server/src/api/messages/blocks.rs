//! `POST /v1/messages`: content blocks, and the conversation that they form.

use ruvllm_runtime::{Message, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::conversation::{Conversation, UnknownCall};
use crate::api::typed::{TextOrList, Typed, refuse};
use crate::error::ApiError;

/// One message of a conversation. Consecutive messages of one role are joined.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageField {
    /// `user` or `assistant`; the last one must be the user's.
    pub role: String,
    #[schema(value_type = MessageContent)]
    pub content: Value,
}

/// A text, or blocks.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
#[serde(untagged)]
pub(crate) enum MessageContent {
    Text(String),
    Blocks(Vec<Block>),
}

/// A text, or text blocks only.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
pub(crate) enum TextContent {
    Text(String),
    Blocks(Vec<OnlyText>),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
pub(crate) enum OnlyText {
    Text(TextBlock),
}

/// A part of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    Text(TextBlock),
    ToolUse(ToolUseBlock),
    ToolResult(ToolResultBlock),
}

#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
pub(crate) struct TextBlock {
    text: String,
    cache_control: Option<CacheControl>,
    #[schema(ignore)]
    citations: Option<Value>,
}

/// A tool call of the assistant.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolUseBlock {
    id: String,
    name: String,
    #[schema(value_type = Object)]
    input: Map<String, Value>,
    cache_control: Option<CacheControl>,
    // Clients send back whatever their types have.
    #[schema(ignore)]
    caller: Option<Value>,
    #[schema(ignore)]
    toolset_name: Option<Value>,
}

/// The result of a tool call, sent by the user.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolResultBlock {
    tool_use_id: String,
    #[schema(value_type = Option<TextContent>)]
    content: Option<Value>,
    /// The model sees it as the word `Error:` before the content.
    is_error: Option<bool>,
    cache_control: Option<CacheControl>,
    #[schema(ignore)]
    toolset_name: Option<Value>,
}

/// Accepted without effect: common prefixes of prompts are always cached.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[expect(dead_code, reason = "it has no effect")]
pub enum CacheControl {
    Ephemeral { ttl: Option<String> },
}

/// Returns the whole conversation, with the system prompt first.
pub(crate) fn messages(system: Option<&Value>, turns: &[MessageField]) -> Result<Vec<Message>, ApiError> {
    let mut conversation = Conversation::default();
    if let Some(system) = system.filter(|system| !system.is_null()) {
        conversation.say("system", &texts(system, "system")?);
    }
    for (index, turn) in turns.iter().enumerate() {
        add_turn(turn, &format!("messages[{index}]"), &mut conversation)?;
    }
    match turns.last() {
        None => Err(ApiError::invalid_param("messages", "messages is empty; give at least one")),
        Some(last) if last.role == "assistant" => {
            let message = "the last message is the assistant's; continuing it is not supported, so end with a user \
                           message";
            Err(ApiError::invalid_param(format!("messages[{}].role", turns.len() - 1), message))
        }
        Some(_) => Ok(conversation.into_messages()),
    }
}

fn add_turn(turn: &MessageField, place: &str, conversation: &mut Conversation) -> Result<(), ApiError> {
    let role = turn.role.as_str();
    if !["user", "assistant"].contains(&role) {
        let message = format!("unknown role {role:?}; use user or assistant, and the field system");
        return Err(ApiError::invalid_param(format!("{place}.role"), message));
    }
    match TextOrList::new(&turn.content, &format!("{place}.content"))? {
        TextOrList::Text(text) => conversation.append_message(role, text),
        TextOrList::List(blocks) if blocks.is_empty() && role == "user" => {
            return Err(ApiError::invalid_param(format!("{place}.content"), "the content has no blocks"));
        }
        // An answer can be empty.
        TextOrList::List(blocks) if blocks.is_empty() => conversation.append_message(role, ""),
        TextOrList::List(blocks) => {
            for block in &blocks {
                add_block(block, role, conversation)?;
            }
        }
    }
    Ok(())
}

fn add_block(block: &Typed<'_>, role: &str, conversation: &mut Conversation) -> Result<(), ApiError> {
    match (block.kind, role) {
        (Some("text"), _) => conversation.append_message(role, &text(block)?),
        (Some("tool_use"), "assistant") => {
            let ToolUseBlock { id, name, input, caller, toolset_name, .. } = block.read()?;
            refuse_in(block, "caller", caller.as_ref())?;
            refuse_in(block, "toolset_name", toolset_name.as_ref())?;
            conversation.call(ToolCall { id, name, arguments: Value::Object(input).to_string() });
        }
        (Some("tool_result"), "user") => add_result(block, conversation)?,
        (Some(kind @ ("tool_use" | "tool_result")), role) => {
            return Err(block.wrong("type", format!("messages of the {role} cannot have blocks of the type {kind}")));
        }
        _ => {
            return Err(
                block.unsupported("blocks", "text, tool_use, tool_result (the models of this server read text only)")
            );
        }
    }
    Ok(())
}

fn add_result(block: &Typed<'_>, conversation: &mut Conversation) -> Result<(), ApiError> {
    let ToolResultBlock { tool_use_id, content, is_error, toolset_name, .. } = block.read()?;
    refuse_in(block, "toolset_name", toolset_name.as_ref())?;
    let text = match content {
        None | Some(Value::Null) => String::new(),
        Some(content) => texts(&content, &format!("{}.content", block.place))?,
    };
    let text = if is_error.unwrap_or(false) { format!("Error: {text}") } else { text };
    conversation.result(&tool_use_id, &text).map_err(|UnknownCall| {
        block.wrong("tool_use_id", format!("there is no tool_use with the id {tool_use_id:?} before its result"))
    })
}

/// A text, or text blocks only.
fn texts(content: &Value, place: &str) -> Result<String, ApiError> {
    match TextOrList::new(content, place)? {
        TextOrList::Text(text) => Ok(text.to_owned()),
        TextOrList::List(blocks) => {
            let all = blocks.iter().map(|block| match block.kind {
                Some("text") => text(block),
                _ => Err(block.unsupported("blocks", "text (the models of this server read text only)")),
            });
            Ok(all.collect::<Result<Vec<String>, ApiError>>()?.join("\n"))
        }
    }
}

fn text(block: &Typed<'_>) -> Result<String, ApiError> {
    let TextBlock { text, citations, .. } = block.read()?;
    refuse_in(block, "citations", citations.as_ref())?;
    Ok(text)
}

fn refuse_in(block: &Typed<'_>, field: &str, given: Option<&Value>) -> Result<(), ApiError> {
    refuse(&format!("{}.{field}", block.place), given, "omit it")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(turns: Value) -> Result<Vec<Message>, ApiError> {
        let turns: Vec<MessageField> = serde_json::from_value(turns).unwrap();
        messages(None, &turns)
    }

    fn check_refused(turns: Value, param: &str, message: &str) {
        let error = read(turns).expect_err(param);
        assert_eq!(error.param.as_deref(), Some(param), "{error:?}");
        assert!(error.message.contains(message), "{error:?}");
    }

    #[test]
    fn results_become_messages_of_tools_and_text_beside_them_the_users() {
        let messages = read(json!([
            {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Paris?"}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look.", "citations": null},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"zone": 1, "city": "Paris"}},
                {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no clock", "is_error": true},
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": "Quick!"}
        ]));
        let messages = messages.unwrap();
        let said: Vec<(&str, &str)> =
            messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
        let expected = [
            ("user", "Weather\nin Paris?"),
            ("assistant", "I look."),
            ("tool", "Rain"),
            ("tool", "Error: no clock"),
            ("user", "And?\nQuick!"),
        ];
        assert_eq!(said, expected);
        assert_eq!(messages[1].tool_calls[0].arguments, r#"{"zone":1,"city":"Paris"}"#, "in the order of the client");
        assert_eq!(messages[3].name.as_deref(), Some("clock"));
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let image =
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {}}]}]);
        check_refused(image, "messages[0].content[1].type", "\"image\" are not supported");
        let thinking = json!([{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}]);
        check_refused(thinking, "messages[0].content[0].type", "\"thinking\" are not supported");
        let prefill = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        check_refused(prefill, "messages[1].role", "continuing it is not supported");
        check_refused(json!([{"role": "system", "content": "a"}]), "messages[0].role", "the field system");
        let unknown = json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]);
        check_refused(unknown, "messages[0].content[0].tool_use_id", "no tool_use");
        let misplaced =
            json!([{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]}]);
        check_refused(misplaced, "messages[0].content[0].type", "messages of the user");
        let misspelt = json!([{"role": "user", "content": [{"type": "text", "txt": "x"}]}]);
        check_refused(misspelt, "messages[0].content[0].txt", "did you mean 'text'");
        check_refused(json!([]), "messages", "empty");
    }
}
