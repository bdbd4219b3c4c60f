//! What `crates/model` reads.

pub mod gguf;
