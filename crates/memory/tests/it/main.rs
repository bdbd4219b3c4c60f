//! All tests of this crate from outside: one program, as each more costs a link.

#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod suite;
mod support;

mod crash;
mod embedded;
mod fuzz_corpus;
mod older_store;
mod opening;
mod postgres;
mod recorder;
mod vectors;
