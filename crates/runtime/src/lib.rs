//! Puts the crates together: one request from validated input to streamed text. The Rust API.
