//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../../../fuzz/src/server/mod.rs"]
mod server;

use crate::replay::replay;

#[test]
fn bodies_are_refused_by_name_or_understood() {
    replay("requests", server::requests::run);
}

#[test]
fn files_of_keys_are_refused_or_written_as_they_were_read() {
    replay("keys", server::keys::run);
}
