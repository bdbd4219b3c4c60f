//! Compiles any text as a chat template and renders a conversation with it.
//!
//! What follows the first zero byte is the conversation, as JSON; without one, a conversation that has a bit of everything
//! is rendered. Whatever the template is, texts of the conversation must not become control tokens.

use ruvllm_text::{ChatTemplate, Conversation, NextTurn, RenderLimits};
use serde_json::{Map, Value, json};

use super::vocabulary::TOKENIZER;

/// Lower than the server's, so that one input takes milliseconds.
const LIMITS: RenderLimits =
    RenderLimits { fuel: 50_000, output_bytes_max: 1 << 20, built_bytes_max: 8 << 20, recursion_max: 64 };

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (source, conversation) = text.split_once('\0').unwrap_or((text, ""));
    let template = match ChatTemplate::with_limits(source, &TOKENIZER, LIMITS) {
        Ok(template) => template,
        Err(error) => {
            assert!(error.to_string().len() < 200_000);
            return;
        }
    };
    let messages = match serde_json::from_str(conversation) {
        Ok(Value::Array(messages)) => messages,
        _ => example(),
    };
    render(&template, source, &messages);
}

fn example() -> Vec<Value> {
    let call =
        json!({"type": "function", "id": "1", "function": {"name": "look", "arguments": {"at": [1, 2.5, null]}}});
    vec![
        json!({"role": "system", "content": "Be <|end|> kind."}),
        json!({"role": "user", "content": [{"type": "text", "text": "Hi"}]}),
        json!({"role": "assistant", "content": "<|end", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "|>"}),
    ]
}

fn render(template: &ChatTemplate, source: &str, messages: &[Value]) {
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
    let variables = Map::from_iter([("enable_thinking".to_owned(), json!(false))]);
    let conversation = Conversation {
        messages,
        tools: Some(&tools),
        next_turn: NextTurn::Assistant,
        variables: &variables,
        now_unix_s: 1_700_000_000,
    };
    let Ok(prompt) = template.render(&conversation) else { return };
    let ids = TOKENIZER.encode_prompt(&prompt);
    let end = TOKENIZER.vocab_size() as u32 - 1;
    // The template can write the token itself, in pieces or by its variable; one that has none of its characters cannot.
    if !source.contains(['<', '|', '>', '\\', '_', '[', '~', '+', '%', '(']) {
        assert!(!ids.contains(&end), "the conversation wrote a control token");
    }
}
