//! LoRA adapters: files, what they must agree with in a model, and their weights ready to multiply.

mod error;
mod file;
mod resident;

pub use error::AdapterError;
pub use file::{AdapterFile, AdapterFormat};
pub use resident::ResidentAdapters;
