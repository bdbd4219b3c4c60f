//! All tests of this crate from outside: one program, as each more costs a link.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

mod adapters;
mod architectures;
mod fuzz_corpus;
mod gguf_golden;
mod hostile;
mod recurrent;
mod safetensors;
