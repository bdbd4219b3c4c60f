//! All tests of this crate from outside: one program, as each more costs a link.

#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod support;

mod adapters;
mod default_model;
mod derived;
mod disk_full;
mod fuzz_corpus;
mod hub;
mod ollama;
mod parallel;
mod several_files;
mod shared;
mod store;
mod two_processes;
mod wheel;
