//! All tests of this crate from outside: one program, as each more costs a link.

mod golden;
mod hostile;
mod requests;
mod rerank;
