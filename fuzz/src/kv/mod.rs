//! What `crates/kv` reads.

pub mod kv_page;
