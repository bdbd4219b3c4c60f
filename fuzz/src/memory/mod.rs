//! What `crates/memory` reads.

pub mod vector_graph;
