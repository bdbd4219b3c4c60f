//! The engine on real models, in this process.

#[path = "../support/candle_oracle.rs"]
mod candle_oracle;
#[path = "../support/phi2.rs"]
mod phi2;
#[path = "../support/mod.rs"]
mod support;

mod adapters;
mod backends;
mod batching;
mod embedder;
mod exact;
mod formats;
mod gemma3;
mod hidden_states;
mod kernel_packs;
mod kv_guard;
mod logits;
mod model_file;
mod perplexity;
mod prefill;
mod prefix_cache;
mod quantize;
mod recall;
mod routing;
mod speculation;
mod structured;
mod training;
mod truncation;
