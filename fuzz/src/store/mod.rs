//! What `crates/store` reads.

pub mod manifest;
