//! What the program itself reads.

pub mod config;
