//! Answers with tool calls, as a Lark grammar.
//!
//! The frame of a call is spelled exactly as models are trained to write it, so most of it is forced; arguments follow
//! their tool's schema.

use serde_json::Value;

use crate::tools::{CALL_CLOSES, CALL_OPENS, ToolCallMode, ToolCalls, ToolFormat};

/// Nobody waits for more calls than this in one answer; a model that repeats itself would.
const PARALLEL_CALLS_MAX: usize = 32;

/// What an answer without calls is called in the grammar, where it has an output format of its own.
pub(super) const ANSWER: &str = "answer";

/// The grammar of calls; `schemas` are those of the tools' arguments, for llguidance.
pub(super) fn to_lark(calls: &ToolCalls, schemas: &[&Value]) -> String {
    let mut lark = match calls.format {
        ToolFormat::Hermes | ToolFormat::Generic(_) => tagged(calls),
        ToolFormat::BareJson => bare(calls),
    };
    let key = calls.format.arguments_key();
    let names: Vec<String> = (0..calls.tools.len()).map(|index| format!("call_{index}")).collect();
    lark += &format!("body: {}\n", names.join(" | "));
    for (index, (tool, schema)) in calls.tools.iter().zip(schemas).enumerate() {
        let head = quoted(&format!("{{\"name\": \"{}\", \"{key}\": ", tool.name));
        lark += &format!("call_{index}: {head} %json {schema}\n");
    }
    lark
}

fn tagged(calls: &ToolCalls) -> String {
    let (opens, closes) = (quoted(&format!("{CALL_OPENS}\n")), quoted(&format!("}}\n{CALL_CLOSES}")));
    let next = quoted(&format!("\n{CALL_OPENS}\n"));
    let more = match calls.is_parallel {
        true => format!(" ({next} body {closes}){{0,{}}}", PARALLEL_CALLS_MAX - 1),
        false => String::new(),
    };
    match calls.mode {
        ToolCallMode::CallsOnly => format!("start: {opens} body {closes}{more}\n"),
        ToolCallMode::FormatOrCalls(_) => format!("start: @{ANSWER} | {opens} body {closes}{more}\n"),
        // Text goes on until a call opens; from then on there is no way back to text.
        ToolCallMode::TextOrCalls => format!(
            "start: TEXT | until_call \"\\n\" body {closes}{more}\n\
             until_call[lazy]: /(?s:.*){CALL_OPENS}/\n\
             TEXT: /(?s:.*)/ & ~/(?s:.*){CALL_OPENS}(?s:.*)/\n"
        ),
    }
}

fn bare(calls: &ToolCalls) -> String {
    match calls.mode {
        ToolCallMode::CallsOnly => "start: body \"}\"\n".to_owned(),
        ToolCallMode::TextOrCalls | ToolCallMode::FormatOrCalls(_) => "start: TEXT | body \"}\"\n\
             TEXT: /(?s:.*)/ & ~/[ \\n\\r\\t]*\\{[ \\n\\r\\t]*\"name\"[ \\n\\r\\t]*:(?s:.*)/\n"
            .to_owned(),
    }
}

/// A Lark string is written as in JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
