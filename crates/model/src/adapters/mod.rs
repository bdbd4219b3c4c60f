//! LoRA adapters: files, what they must agree with in a model, and their weights ready to multiply.
//!
//! A file is read whole and checked before anything is made of it (`file.rs`, `peft.rs`, `gguf.rs`); `targets.rs` says what a model
//! lets adapters change, `pack.rs` holds the one against the other, and `resident.rs` is where the runner finds what batches name.

mod error;
mod file;
mod gguf;
pub mod merge;
mod pack;
mod peft;
mod resident;
mod targets;
mod trained;
mod write;

pub use error::AdapterError;
pub use file::{AdapterFile, AdapterFormat};
pub use pack::{AdapterFacts, pack};
pub use resident::{AdapterBuffers, ResidentAdapters};
pub use ruvllm_kernels::ops::Adapter;
pub use targets::AdapterTargets;
pub(crate) use targets::{Order, RowPick, Site, Target};
pub use trained::{TrainedAdapter, TrainedModule, write_trained};
