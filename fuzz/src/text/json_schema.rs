//! Reads any text as a JSON schema. An answer to one that compiles is JSON.
//!
//! What follows the first zero byte chooses the answer.

use ruvllm_text::{OutputFormat, closed};
use serde::de::IgnoredAny;

use super::grammar::compile_and_follow;

pub fn run(bytes: &[u8]) {
    let (source, choices) = match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, bytes),
    };
    let Ok(schema) = serde_json::from_slice(source) else { return };
    // As it is for `response_format`, with objects closed, and as it is for tools.
    for schema in [closed(&schema), schema] {
        if let Some(answer) = compile_and_follow(&OutputFormat::JsonSchema(schema), choices) {
            let answer = String::from_utf8_lossy(&answer);
            // Ignored, as a number may be larger than any float.
            assert!(serde_json::from_str::<IgnoredAny>(&answer).is_ok(), "{answer:?} is not JSON");
        }
    }
}
