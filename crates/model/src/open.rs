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

/// Opens a GGUF file, or a folder with `config.json` and safetensors, which is presented as one.
pub fn open(path: impl AsRef<Path>) -> Result<Gguf, OpenError> {
    let path = path.as_ref();
    if path.is_dir() { Ok(hugging_face::open(path)?) } else { Ok(Gguf::open(path)?) }
}
