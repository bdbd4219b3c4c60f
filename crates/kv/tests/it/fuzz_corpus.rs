//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../../../fuzz/src/kv/mod.rs"]
mod kv;

use crate::replay::replay;

#[test]
fn pages_are_refused_or_restored() {
    replay("kv_page", kv::kv_page::run);
}
