//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../fuzz/src/cli/mod.rs"]
mod cli;

use crate::replay::replay;

#[test]
fn settings_are_refused_with_a_line_or_read() {
    replay("config", cli::config::run);
}
