//! Kernel packs: what good ones do, and what hostile ones cannot.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

mod format;
mod fuzz_corpus;
mod hostile;
mod sandbox;
mod standard;
mod support;
