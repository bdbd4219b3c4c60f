//! The program as its users start it.

#[path = "../support/peft.rs"]
mod peft;
#[path = "../support/phi2.rs"]
mod phi2;
#[path = "../../fuzz/replay.rs"]
mod replay;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

mod adapter_changes;
mod adapters;
mod auto;
mod backends;
mod cli;
mod config;
mod embed;
mod embeddings;
mod fuzz_corpus;
mod kernel_packs;
mod launch;
mod learned;
mod learning;
mod memory;
mod mistralrs;
mod ollama;
mod reasoning;
mod recall;
mod recorded;
mod rerank;
mod restart;
mod serve;
mod serving;
mod train;
