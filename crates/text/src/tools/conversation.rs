//! What a chat template is given: messages that it can render, and the tools if it knows what to do with them.

use serde_json::{Map, Value, json};

use super::format::{CALL_CLOSES, CALL_OPENS, Explanation};
use super::{Tool, ToolFormat};

impl ToolFormat {
    /// Messages and tools for [`Conversation`](crate::Conversation). Without tools, only what the history has of them
    /// is brought into the model's form.
    pub fn conversation(&self, messages: &[Value], tools: &[Tool]) -> (Vec<Value>, Option<Value>) {
        match self {
            Self::Hermes | Self::BareJson => {
                let messages = messages.iter().map(with_parsed_arguments).collect();
                (messages, (!tools.is_empty()).then(|| tools.iter().map(definition).collect()))
            }
            Self::Generic(place) => {
                let mut messages = in_plain_text(messages);
                if !tools.is_empty() {
                    explain(&mut messages, tools, *place);
                }
                (messages, None)
            }
        }
    }
}

/// A tool as OpenAI's clients write it, and as templates expect it.
fn definition(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(tool.name));
    if let Some(description) = &tool.description {
        function.insert("description".to_owned(), json!(description));
    }
    let parameters = match &tool.parameters {
        Value::Object(schema) if !schema.is_empty() => tool.parameters.clone(),
        _ => json!({"type": "object", "properties": {}}),
    };
    function.insert("parameters".to_owned(), parameters);
    json!({"type": "function", "function": function})
}

/// Clients send arguments as JSON text; templates write them with `tojson` and need the object itself.
fn with_parsed_arguments(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        for call in calls {
            let function = if call.get("function").is_some() { &mut call["function"] } else { call };
            if let Some(arguments) = function.get_mut("arguments") {
                *arguments = parsed_arguments(arguments);
            }
        }
        if message.get("content").is_none_or(Value::is_null) {
            message["content"] = json!("");
        }
    }
    message
}

fn parsed_arguments(arguments: &Value) -> Value {
    match arguments {
        Value::String(text) if text.trim().is_empty() => json!({}),
        // What is not JSON is history that a client made up; it stays text.
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        other => other.clone(),
    }
}

/// Calls and results as messages of the roles that every template knows.
fn in_plain_text(messages: &[Value]) -> Vec<Value> {
    let mut plain: Vec<Value> = Vec::with_capacity(messages.len());
    let mut is_after_result = false;
    for message in messages {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        let is_result = role == "tool" || role == "function";
        if is_result {
            let result = format!("<tool_response>\n{}\n</tool_response>", text(message));
            match plain.last_mut().filter(|_| is_after_result) {
                // Results of parallel calls are one turn.
                Some(last) => last["content"] = json!(format!("{}\n{result}", text(last))),
                None => plain.push(json!({"role": "user", "content": result})),
            }
        } else if let Some(calls) = message.get("tool_calls").and_then(Value::as_array) {
            let parts = Some(text(message)).filter(|text| !text.is_empty()).into_iter();
            let parts: Vec<String> = parts.chain(calls.iter().map(call_text)).collect();
            plain.push(json!({"role": role, "content": parts.join("\n")}));
        } else {
            plain.push(message.clone());
        }
        is_after_result = is_result;
    }
    plain
}

fn call_text(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name").unwrap_or(&Value::Null);
    let arguments = parsed_arguments(function.get("arguments").unwrap_or(&Value::Null));
    format!("{CALL_OPENS}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{CALL_CLOSES}")
}

/// The text of a message, whose content may be a string or a list of parts.
fn text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn explain(messages: &mut Vec<Value>, tools: &[Tool], place: Explanation) {
    let explanation = explanation(tools);
    let role = match place {
        Explanation::SystemMessage => "system",
        Explanation::FirstUserMessage => "user",
    };
    match messages.iter_mut().find(|message| message.get("role").is_some_and(|of| of == role)) {
        // A question is read last.
        Some(message) if role == "user" => message["content"] = json!(format!("{explanation}\n\n{}", text(message))),
        Some(message) => message["content"] = json!(format!("{}\n\n{explanation}", text(message))),
        None => messages.insert(0, json!({"role": role, "content": explanation})),
    }
}

fn explanation(tools: &[Tool]) -> String {
    let definitions: Vec<String> = tools.iter().map(|tool| definition(tool).to_string()).collect();
    format!(
        "You can call the following tools, each described by a JSON object on a line of its own:\n<tools>\n{}\n\
         </tools>\n\nTo call a tool, write its name and its arguments as JSON between tags, like this:\n{CALL_OPENS}\n\
         {{\"name\": \"name of the tool\", \"arguments\": {{\"argument\": \"value\"}}}}\n{CALL_CLOSES}\n\
         The result is then given to you between <tool_response> tags. Answer without a call where no tool is needed.",
        definitions.join("\n")
    )
}
