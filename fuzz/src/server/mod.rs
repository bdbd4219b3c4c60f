//! What `crates/server` reads.

pub mod keys;
pub mod requests;
