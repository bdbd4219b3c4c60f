//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../../../fuzz/src/model/mod.rs"]
mod model;

use crate::replay::replay;

#[test]
fn files_are_refused_or_sound() {
    replay("gguf", model::gguf::run);
}
