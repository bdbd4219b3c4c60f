//! Kernel packs: what good ones do, and what hostile ones cannot.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

mod examples;
mod format;
mod fuzz_corpus;
mod greedy;
mod hostile;
mod sandbox;
mod standard;
mod support;
