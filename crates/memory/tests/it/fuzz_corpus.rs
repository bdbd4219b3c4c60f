//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../../../fuzz/src/memory/mod.rs"]
mod memory;

use crate::replay::replay;

#[test]
fn saved_graphs_are_refused_or_searched() {
    replay("vector_graph", memory::vector_graph::run);
}
