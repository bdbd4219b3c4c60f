//! Model files: what is in them, checked, without loading them.
//!
//! Model files come from strangers. A reader here never allocates what the file's real size does not justify, and
//! answers damage with an error that says what is wrong and where. It knows nothing of what the tensors mean.

pub mod gguf;
pub mod map;
pub mod safetensors;
