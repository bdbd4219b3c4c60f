//! `POST /v1/responses`: the input items, and the conversation that they form.

use ruvllm_runtime::ToolCall;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::store::ResponseStore;
use super::tools;
use crate::api::conversation::{Conversation, UnknownCall};
use crate::api::sections::Section;
use crate::api::signature::Signature;
use crate::api::typed::{TextOrList, Typed};
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

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
    CustomToolCall(CustomCallItem),
    CustomToolCallOutput(FunctionCallOutputItem),
    LocalShellCall(ShellCallItem),
    LocalShellCallOutput(FunctionCallOutputItem),
    Reasoning(ReasoningItem),
    ItemReference(ItemReference),
}

#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
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
pub(crate) struct FunctionCallItem {
    call_id: String,
    name: String,
    /// A JSON object, as text.
    arguments: String,
    /// The namespace that the tool belongs to.
    namespace: Option<String>,
    id: Option<String>,
    status: Option<String>,
}

/// A call of a tool whose input is text.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub(crate) struct CustomCallItem {
    call_id: String,
    name: String,
    input: String,
    id: Option<String>,
    status: Option<String>,
}

/// What the model wrote for itself before its answer.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub(crate) struct ReasoningItem {
    /// As the server sent it; what it did not send is left out.
    encrypted_content: Option<String>,
    #[schema(value_type = Option<Vec<Object>>)]
    summary: Option<Value>,
    #[schema(value_type = Option<Vec<Object>>)]
    content: Option<Value>,
    id: Option<String>,
    status: Option<String>,
}

/// The result of a tool call.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub(crate) struct FunctionCallOutputItem {
    call_id: String,
    #[schema(value_type = ItemText)]
    output: Value,
    id: Option<String>,
    status: Option<String>,
}

/// A command that the model wants the client to run.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are accepted and have no effect")]
pub(crate) struct ShellCallItem {
    call_id: String,
    #[schema(value_type = Object)]
    action: Value,
    id: Option<String>,
    status: Option<String>,
}

/// An output item of a stored response.
#[derive(Debug, Deserialize, ToSchema)]
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
pub(crate) struct TextPart {
    text: String,
    #[schema(value_type = Option<Vec<Object>>)]
    annotations: Option<Vec<Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    logprobs: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
struct RefusalPart {
    refusal: String,
}

/// Appends the input to the conversation.
pub(crate) fn add(
    input: &Value,
    conversation: &mut Conversation,
    store: &ResponseStore,
    tenant: &str,
    ignored: &IgnoredParams,
) -> Result<(), ApiError> {
    let items = match TextOrList::new(input, "input", ignored)? {
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
        add_item(item, conversation, store, tenant, ignored)?;
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
    ignored: &IgnoredParams,
) -> Result<(), ApiError> {
    match item.kind {
        None if item.has("role") => add_message(item, conversation, ignored),
        Some("message") => add_message(item, conversation, ignored),
        Some("function_call") => {
            let FunctionCallItem { call_id, name, arguments, namespace, .. } = item.read()?;
            let name = tools::offered_name(namespace.as_deref(), &name);
            conversation.call(ToolCall { id: call_id, name, arguments });
            Ok(())
        }
        Some("custom_tool_call") => {
            let CustomCallItem { call_id, name, input, .. } = item.read()?;
            let arguments = serde_json::json!({ tools::CUSTOM_INPUT: input }).to_string();
            conversation.call(ToolCall { id: call_id, name, arguments });
            Ok(())
        }
        Some("local_shell_call") => {
            let ShellCallItem { call_id, mut action, .. } = item.read()?;
            action.as_object_mut().map(|action| action.remove("type"));
            conversation.call(ToolCall {
                id: call_id,
                name: tools::LOCAL_SHELL.to_owned(),
                arguments: action.to_string(),
            });
            Ok(())
        }
        Some("reasoning") => {
            let ReasoningItem { encrypted_content, .. } = item.read()?;
            match encrypted_content.as_deref().and_then(Signature::unseal) {
                Some(text) => conversation.reason(&text),
                None => item.ignore("this server did not write it")?,
            }
            Ok(())
        }
        // Steps of tools that another server ran.
        Some(
            "web_search_call"
            | "file_search_call"
            | "computer_call"
            | "computer_call_output"
            | "code_interpreter_call"
            | "image_generation_call"
            | "mcp_list_tools"
            | "mcp_call"
            | "mcp_approval_request"
            | "mcp_approval_response"
            | "tool_search_call"
            | "tool_search_output"
            | "compaction",
        ) => item.ignore("it belongs to another server"),
        Some("function_call_output" | "custom_tool_call_output" | "local_shell_call_output") => {
            let FunctionCallOutputItem { call_id, output, .. } = item.read()?;
            let text = text(&output, &format!("{}.output", item.place), ignored)?;
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
        _ => Err(item.unsupported(
            "items",
            "message, function_call, function_call_output, custom_tool_call, reasoning, item_reference",
        )),
    }
}

fn add_message(item: &Typed<'_>, conversation: &mut Conversation, ignored: &IgnoredParams) -> Result<(), ApiError> {
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
    let text = text(&content, &format!("{}.content", item.place), ignored)?;
    match role {
        "assistant" => conversation.answer(&text),
        role => conversation.say(role, &text),
    }
    Ok(())
}

/// Adds a part of an answer.
pub(crate) fn add_section(section: &Section, conversation: &mut Conversation) {
    match section {
        Section::Reasoning(text) => conversation.reason(text),
        Section::Text(text) => conversation.answer(text),
        Section::Call(call) => conversation.call(call.clone()),
    }
}

fn text(content: &Value, place: &str, ignored: &IgnoredParams) -> Result<String, ApiError> {
    let parts = match TextOrList::new(content, place, ignored)? {
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
