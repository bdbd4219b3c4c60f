//! All tests of this crate from outside: one program, as each more costs a link.

mod gradients;
mod reference;
mod runs;
mod support;
mod tape;
