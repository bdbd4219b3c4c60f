//! `POST /v1/messages`: content blocks, and the conversation that they form.

use ruvllm_runtime::{Message, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::conversation::{Conversation, UnknownCall};
use crate::api::signature::Signature;
use crate::api::typed::{TextOrList, Typed};
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// One message of a conversation. Consecutive messages of one role are joined.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MessageField {
    /// `user` or `assistant`, or `system` for instructions within the conversation, which the model reads as the user's. The
    /// last one must not be the assistant's.
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
    Thinking(ThinkingBlock),
    ToolUse(ToolUseBlock),
    ToolResult(ToolResultBlock),
}

/// What the assistant wrote for itself before its answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ThinkingBlock {
    thinking: String,
    /// Proves that this server wrote it; what it did not write is left out.
    signature: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub(crate) struct TextBlock {
    text: String,
    #[schema(value_type = Option<CacheControl>)]
    cache_control: Option<Value>,
    // Clients send back whatever their types have.
    #[schema(ignore)]
    citations: Option<Value>,
}

/// A tool call of the assistant.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub(crate) struct ToolUseBlock {
    id: String,
    name: String,
    #[schema(value_type = Object)]
    input: Map<String, Value>,
    #[schema(value_type = Option<CacheControl>)]
    cache_control: Option<Value>,
    // Clients send back whatever their types have.
    #[schema(ignore)]
    caller: Option<Value>,
    #[schema(ignore)]
    toolset_name: Option<Value>,
}

/// The result of a tool call, sent by the user.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub(crate) struct ToolResultBlock {
    tool_use_id: String,
    #[schema(value_type = Option<TextContent>)]
    content: Option<Value>,
    /// The model sees it as the word `Error:` before the content.
    is_error: Option<bool>,
    #[schema(value_type = Option<CacheControl>)]
    cache_control: Option<Value>,
    #[schema(ignore)]
    toolset_name: Option<Value>,
}

/// Accepted without effect: common prefixes of prompts are always cached.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
pub enum CacheControl {
    Ephemeral { ttl: Option<String> },
}

/// Begins a system block that names the client's version and differs from request to request. It is meant for Anthropic's
/// servers; in the prompt it would keep everything behind it out of the prefix cache.
const BILLING_BLOCK: &str = "x-anthropic-billing-header:";

/// Returns the whole conversation, with the system prompt first.
pub(crate) fn messages(
    system: Option<&Value>,
    turns: &[MessageField],
    ignored: &IgnoredParams,
) -> Result<Vec<Message>, ApiError> {
    let mut conversation = Conversation::default();
    if let Some(system) = system.filter(|system| !system.is_null()) {
        let texts = texts(system, "system", ignored)?;
        let system: Vec<&str> =
            texts.iter().map(String::as_str).filter(|text| !text.starts_with(BILLING_BLOCK)).collect();
        if system.len() < texts.len() {
            ignored.note("system:x-anthropic-billing-header", "it is meant for other servers")?;
        }
        conversation.say("system", &system.join("\n"));
    }
    for (index, turn) in turns.iter().enumerate() {
        add_turn(turn, &format!("messages[{index}]"), &mut conversation, ignored)?;
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

fn add_turn(
    turn: &MessageField,
    place: &str,
    conversation: &mut Conversation,
    ignored: &IgnoredParams,
) -> Result<(), ApiError> {
    let role = match turn.role.as_str() {
        // Chat templates know instructions at the beginning only.
        "system" => "user",
        role @ ("user" | "assistant") => role,
        role => {
            let message = format!("unknown role {role:?}; use user, assistant or system");
            return Err(ApiError::invalid_param(format!("{place}.role"), message));
        }
    };
    match TextOrList::new(&turn.content, &format!("{place}.content"), ignored)? {
        TextOrList::Text(text) => conversation.append_message(role, text),
        TextOrList::List(blocks) if blocks.is_empty() && role == "user" => {
            return Err(ApiError::invalid_param(format!("{place}.content"), "the content has no blocks"));
        }
        // An answer can be empty.
        TextOrList::List(blocks) if blocks.is_empty() => conversation.append_message(role, ""),
        TextOrList::List(blocks) => {
            for block in &blocks {
                add_block(block, role, conversation, ignored)?;
            }
        }
    }
    Ok(())
}

fn add_block(
    block: &Typed<'_>,
    role: &str,
    conversation: &mut Conversation,
    ignored: &IgnoredParams,
) -> Result<(), ApiError> {
    match (block.kind, role) {
        (Some("text"), _) => conversation.append_message(role, &text(block)?),
        (Some("thinking"), "assistant") => {
            let ThinkingBlock { thinking, signature } = block.read()?;
            match signature.is_some_and(|signature| Signature::of(&thinking).matches(&signature)) {
                true => conversation.reason(&thinking),
                false => block.ignore("this server did not write it")?,
            }
        }
        // Encrypted by another server, or steps of tools that another server ran.
        (
            Some("redacted_thinking" | "server_tool_use" | "mcp_tool_use" | "mcp_tool_result" | "container_upload"),
            "assistant",
        ) => block.ignore("it belongs to another server")?,
        (Some(kind), "assistant") if kind.ends_with("_tool_result") => {
            block.ignore("it belongs to another server")?;
        }
        (Some("tool_use"), "assistant") => {
            let ToolUseBlock { id, name, input, .. } = block.read()?;
            conversation.call(ToolCall { id, name, arguments: Value::Object(input).to_string() });
        }
        (Some("tool_result"), "user") => add_result(block, conversation, ignored)?,
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

fn add_result(block: &Typed<'_>, conversation: &mut Conversation, ignored: &IgnoredParams) -> Result<(), ApiError> {
    let ToolResultBlock { tool_use_id, content, is_error, .. } = block.read()?;
    let text = match content {
        None | Some(Value::Null) => String::new(),
        Some(content) => texts(&content, &format!("{}.content", block.place), ignored)?.join("\n"),
    };
    let text = if is_error.unwrap_or(false) { format!("Error: {text}") } else { text };
    conversation.result(&tool_use_id, &text).map_err(|UnknownCall| {
        block.wrong("tool_use_id", format!("there is no tool_use with the id {tool_use_id:?} before its result"))
    })
}

/// A text, or text blocks only.
fn texts(content: &Value, place: &str, ignored: &IgnoredParams) -> Result<Vec<String>, ApiError> {
    match TextOrList::new(content, place, ignored)? {
        TextOrList::Text(text) => Ok(vec![text.to_owned()]),
        TextOrList::List(blocks) => {
            let text = |block: &Typed<'_>| match block.kind {
                Some("text") => text(block),
                _ => Err(block.unsupported("blocks", "text (the models of this server read text only)")),
            };
            blocks.iter().map(text).collect()
        }
    }
}

fn text(block: &Typed<'_>) -> Result<String, ApiError> {
    Ok(block.read::<TextBlock>()?.text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(turns: Value) -> Result<Vec<Message>, ApiError> {
        let turns: Vec<MessageField> = serde_json::from_value(turns).unwrap();
        messages(None, &turns, &IgnoredParams::default())
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
        let prefill = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        check_refused(prefill, "messages[1].role", "continuing it is not supported");
        check_refused(json!([{"role": "wizard", "content": "a"}]), "messages[0].role", "use user, assistant or system");
        let unknown = json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]);
        check_refused(unknown, "messages[0].content[0].tool_use_id", "no tool_use");
        let misplaced =
            json!([{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]}]);
        check_refused(misplaced, "messages[0].content[0].type", "messages of the user");
        let misspelt = json!([{"role": "user", "content": [{"type": "text", "txt": "x"}]}]);
        check_refused(misspelt, "messages[0].content[0].text", "required");
        check_refused(json!([]), "messages", "empty");
    }

    #[test]
    fn thinking_is_taken_back_from_whoever_got_it_here_and_from_nobody_else() {
        let read = |signature: &str| {
            let thinking = json!({"type": "thinking", "thinking": "Hm.", "signature": signature});
            let turns = json!([
                {"role": "user", "content": "Why?"},
                {"role": "assistant", "content": [thinking, {"type": "text", "text": "Because."}]},
                {"role": "user", "content": "So?"},
            ]);
            let (turns, ignored): (Vec<MessageField>, _) =
                (serde_json::from_value(turns).unwrap(), IgnoredParams::default());
            (messages(None, &turns, &ignored).unwrap()[1].clone(), ignored.all())
        };
        let (message, ignored) = read(&Signature::of("Hm.").to_string());
        assert_eq!((message.reasoning.as_deref(), message.content.as_str()), (Some("Hm."), "Because."));
        assert!(ignored.is_empty());
        for forged in ["", "x", &Signature::of("Hm!").to_string()] {
            let (message, ignored) = read(forged);
            assert_eq!((message.reasoning, message.content.as_str()), (None, "Because."));
            assert_eq!(ignored, ["messages[1].content[0]:thinking"]);
        }
    }

    #[test]
    fn what_changes_with_every_request_is_left_out_of_the_prompt() {
        let system = |id: &str| {
            json!([
                {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.1; cch={id};")},
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            ])
        };
        let turns: Vec<MessageField> = serde_json::from_value(json!([{"role": "user", "content": "Hi"}])).unwrap();
        let read = |id: &str| messages(Some(&system(id)), &turns, &IgnoredParams::default()).unwrap();
        assert_eq!(read("1"), read("2"));
        assert_eq!(read("1")[0].content, "Be brief.");
    }
}
