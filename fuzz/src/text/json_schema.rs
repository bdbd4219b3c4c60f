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
    let output_formats = [
        OutputFormat::strict_schema(closed(&schema)),
        OutputFormat::relaxed_schema(closed(&schema)),
        OutputFormat::relaxed_schema(schema),
    ];
    for output_format in output_formats {
        if let Some(answer) = compile_and_follow(&output_format, choices) {
            let answer = String::from_utf8_lossy(&answer);
            // Ignored, as a number may be larger than any float.
            assert!(serde_json::from_str::<IgnoredAny>(&answer).is_ok(), "{answer:?} is not JSON");
        }
    }
}
