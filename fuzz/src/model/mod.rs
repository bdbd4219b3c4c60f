//! What `crates/model` reads.

pub mod adapter;
pub mod gguf;
pub mod hugging_face;
