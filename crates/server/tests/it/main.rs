//! All tests of this crate from outside: one program, as each more costs a link.

#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod served;
mod support;

mod bounded_work;
mod errors;
mod fuzz_corpus;
mod grpc;
mod keys;
mod limits;
mod messages;
mod recorded;
mod responses;
mod shutdown;
mod tls;
