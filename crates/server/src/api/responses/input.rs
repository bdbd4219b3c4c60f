//! `POST /v1/responses`: the input items, and the conversation that they form.

use ruvllm_runtime::ToolCall;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::store::ResponseStore;
use crate::api::conversation::{Conversation, UnknownCall};
use crate::api::sections::Section;
use crate::api::typed::{TextOrList, Typed};
use crate::error::ApiError;

/// Maximum size of a conversation in memory. References can make one much larger than the body of its request.
const CONVERSATION_BYTES_MAX: usize = 16 << 20;

/// A text of the user, or items.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
#[serde(untagged)]
pub(crate) enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

/// A part of a conversation. The default type is `message`.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum InputItem {
    Message(MessageItem),
    FunctionCall(FunctionCallItem),
    FunctionCallOutput(FunctionCallOutputItem),
    ItemReference(ItemReference),
}

#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageItem {
    /// `user`, `assistant`, `system` or `developer`
    role: String,
    /// A text, or parts of the types `input_text`, `output_text` and `refusal`.
    #[schema(value_type = ItemText)]
    content: Value,
    // Answers have these fields; clients send them back unchanged.
    id: Option<String>,
    status: Option<String>,
    phase: Option<String>,
}

/// A tool call of the model.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionCallItem {
    call_id: String,
    name: String,
    /// A JSON object, as text.
    arguments: String,
    id: Option<String>,
    status: Option<String>,
}

/// The result of a tool call.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionCallOutputItem {
    call_id: String,
    #[schema(value_type = ItemText)]
    output: Value,
    id: Option<String>,
    status: Option<String>,
}

/// An output item of a stored response.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ItemReference {
    id: String,
}

/// A text, or its parts.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "only describes a field for the OpenAPI document")]
#[serde(untagged)]
pub(crate) enum ItemText {
    Text(String),
    Parts(Vec<TextPart>),
}

#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
#[serde(deny_unknown_fields)]
pub(crate) struct TextPart {
    text: String,
    #[schema(value_type = Option<Vec<Object>>)]
    annotations: Option<Vec<Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    logprobs: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusalPart {
    refusal: String,
}

/// Appends the input to the conversation.
pub(crate) fn add(
    input: &Value,
    conversation: &mut Conversation,
    store: &ResponseStore,
    tenant: &str,
) -> Result<(), ApiError> {
    let items = match TextOrList::new(input, "input")? {
        TextOrList::Text(text) => {
            conversation.say("user", text);
            Vec::new()
        }
        TextOrList::List(items) if items.is_empty() => {
            return Err(ApiError::invalid_param("input", "input is empty; give a text or at least one item"));
        }
        TextOrList::List(items) => items,
    };
    for item in &items {
        add_item(item, conversation, store, tenant)?;
        check_size(conversation)?;
    }
    check_size(conversation)
}

fn check_size(conversation: &Conversation) -> Result<(), ApiError> {
    if conversation.bytes() <= CONVERSATION_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the conversation has more than {CONVERSATION_BYTES_MAX} bytes with everything that it \
                           references"
    );
    Err(ApiError::invalid_param("input", message).with_code("context_length_exceeded"))
}

fn add_item(
    item: &Typed<'_>,
    conversation: &mut Conversation,
    store: &ResponseStore,
    tenant: &str,
) -> Result<(), ApiError> {
    match item.kind {
        None if item.has("role") => add_message(item, conversation),
        Some("message") => add_message(item, conversation),
        Some("function_call") => {
            let FunctionCallItem { call_id, name, arguments, .. } = item.read()?;
            conversation.call(ToolCall { id: call_id, name, arguments });
            Ok(())
        }
        Some("function_call_output") => {
            let FunctionCallOutputItem { call_id, output, .. } = item.read()?;
            let text = text(&output, &format!("{}.output", item.place))?;
            conversation.result(&call_id, &text).map_err(|UnknownCall| {
                item.wrong(
                    "call_id",
                    format!("there is no function_call with the call_id {call_id:?} before its output"),
                )
            })
        }
        Some("item_reference") => {
            let ItemReference { id } = item.read()?;
            let section = store.item(tenant, &id).ok_or_else(|| {
                let message = format!("there is no stored item {id:?}; send the item itself");
                item.wrong("id", message).with_code("item_not_found")
            })?;
            add_section(&section, conversation);
            Ok(())
        }
        _ => Err(item.unsupported("items", "message, function_call, function_call_output, item_reference")),
    }
}

fn add_message(item: &Typed<'_>, conversation: &mut Conversation) -> Result<(), ApiError> {
    let MessageItem { role, content, .. } = item.read()?;
    let role = match role.as_str() {
        // The newer name of the role system.
        "developer" => "system",
        role @ ("system" | "user" | "assistant") => role,
        role => {
            let message = format!("unknown role {role:?}; use user, assistant, system or developer");
            return Err(item.wrong("role", message));
        }
    };
    conversation.say(role, &text(&content, &format!("{}.content", item.place))?);
    Ok(())
}

/// Adds a part of an answer.
pub(crate) fn add_section(section: &Section, conversation: &mut Conversation) {
    match section {
        Section::Text(text) => conversation.say("assistant", text),
        Section::Call(call) => conversation.call(call.clone()),
    }
}

fn text(content: &Value, place: &str) -> Result<String, ApiError> {
    let parts = match TextOrList::new(content, place)? {
        TextOrList::Text(text) => return Ok(text.to_owned()),
        TextOrList::List(parts) => parts,
    };
    let text = |part: &Typed<'_>| match part.kind {
        Some("input_text" | "output_text" | "text") => Ok(part.read::<TextPart>()?.text),
        Some("refusal") => Ok(part.read::<RefusalPart>()?.refusal),
        _ => Err(part.unsupported("parts", "input_text, output_text (the models of this server read text only)")),
    };
    Ok(parts.iter().map(text).collect::<Result<Vec<String>, ApiError>>()?.join("\n"))
}
