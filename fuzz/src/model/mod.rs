//! What `crates/model` reads.

pub mod gguf;
pub mod hugging_face;
