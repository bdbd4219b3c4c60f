//! What `crates/text` reads.

pub mod grammar;
pub mod json_schema;
pub mod template;
pub mod tokenizer_json;
pub mod tool_calls;
mod vocabulary;
