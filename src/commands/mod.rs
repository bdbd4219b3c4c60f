//! One file per command.

pub mod adapters;
pub mod bench;
pub mod cache;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod embed;
pub mod keys;
pub mod launch;
pub mod list;
pub mod man;
pub mod memory;
pub mod perplexity;
pub mod policies;
pub mod ps;
pub mod pull;
pub mod push;
pub mod quantize;
pub mod rerank;
pub mod rm;
pub mod run;
pub mod serve;
pub mod sessions;
pub mod show;
pub mod tokenize;
pub mod witness;
