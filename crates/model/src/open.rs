//! Opening a model, whatever it is stored as.

use std::path::Path;

use thiserror::Error;

use crate::formats::gguf::{Gguf, GgufError};
use crate::hugging_face::{self, HuggingFaceError};

/// Why a model cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    HuggingFace(#[from] HuggingFaceError),
}

/// Opens a GGUF file, or a folder with `config.json` and safetensors (or that `config.json`), which is presented as one.
pub fn open(path: impl AsRef<Path>) -> Result<Gguf, OpenError> {
    let path = path.as_ref();
    match folder_of(path) {
        Some(folder) => Ok(hugging_face::open(folder)?),
        None => Ok(Gguf::open(path)?),
    }
}

/// Returns the folder that a model is in, if it is not one file: given itself, or its `config.json`.
pub fn folder_of(path: &Path) -> Option<&Path> {
    match path.file_name() {
        Some(name) if name == hugging_face::CONFIG => Some(path.parent()?),
        _ => path.is_dir().then_some(path),
    }
}
