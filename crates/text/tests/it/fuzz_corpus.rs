//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../../../fuzz/src/text/mod.rs"]
mod text;

use crate::replay::replay;

#[test]
fn output_formats_are_refused_or_followed() {
    replay("grammar", text::grammar::run);
}

#[test]
fn answers_to_schemas_are_json() {
    replay("json_schema", text::json_schema::run);
}

#[test]
fn templates_are_refused_or_rendered() {
    replay("template", text::template::run);
}

#[test]
fn tokenizers_are_refused_or_encode() {
    replay("tokenizer_json", text::tokenizer_json::run);
}

#[test]
fn tool_calls_are_the_same_in_any_pieces() {
    replay("tool_calls", text::tool_calls::run);
}
