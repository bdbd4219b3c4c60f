//! One file per command.

pub mod bench;
pub mod chat;
pub mod doctor;
pub mod list;
pub mod perplexity;
pub mod pull;
pub mod quantize;
pub mod rm;
pub mod run;
pub mod show;
pub mod tokenize;
