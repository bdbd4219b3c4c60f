//! All tests of this crate from outside: one program, as each more costs a link.

#[cfg(feature = "generate")]
mod generating;
mod golden;
mod hostile;
mod requests;
mod rerank;
