//! Trains LoRA adapters on quantized models by back-propagation, with the project's own kernels.
//!
//! A [`Base`] is a model file whose matrices are dequantized one layer at a time, whenever they are needed; its weights stay as
//! they are. A [`Trainer`] packs [`Item`]s into steps, computes the gradient of the factors of a LoRA (`pass.rs`), and moves them
//! (`optimizer.rs`). Everything follows from the options, the items and a seed: the same bytes come out on any number of threads.
//! This crate knows token ids; it knows nothing of text, files of items, or servers.

mod adapter;
mod attention;
mod base;
mod batch;
mod compute;
mod error;
mod gated;
mod head;
mod item;
mod layer;
mod linear;
mod lora;
mod memory;
mod norm;
mod optimizer;
mod options;
mod pass;
mod preference;
mod random;
mod rate;
mod split;
mod state;
mod trainer;

pub use adapter::AdapterLabel;
pub use base::Base;
pub use batch::Batch;
pub use compute::Machine;
pub use error::TrainError;
pub use item::Item;
pub use lora::{LoraModule, LoraWeights};
pub use memory::RunMemory;
pub use options::TrainOptions;
pub use pass::Pass;
pub use preference::Preferences;
pub use rate::{RATES, TriedRate, try_learning_rates};
pub use split::{Split, split_documents};
pub use state::saved_options;
pub use trainer::{Advance, Data, Evaluation, Outcome, StepReport, Trainer};
