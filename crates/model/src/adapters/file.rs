//! An adapter as its file says it, before it is held against a model.

use std::path::{Path, PathBuf};

use ruvllm_runner::{AdapterId, TokenId};

use super::AdapterError;

/// How an adapter is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterFormat {
    /// `adapter_config.json` and `adapter_model.safetensors`.
    Peft,
    Gguf,
}

/// What an adapter's file says, read without a base model.
#[derive(Debug)]
pub struct AdapterFile {
    pub format: AdapterFormat,
    /// The folder or file that was named.
    pub path: PathBuf,
    /// The digest of all of its contents.
    pub id: AdapterId,
    pub file_bytes: u64,
    /// Modules that it changes, without the layer, such as `q_proj` or `attn_q`, in alphabetical order.
    pub targets: Vec<String>,
    /// The smallest and the largest rank of its matrices.
    pub ranks: (usize, usize),
    /// The scale that most of them have by the file, such as `lora_alpha`.
    pub alpha: f32,
    /// Name of the base model, if the file says it.
    pub base_model: Option<String>,
    /// Tokens that switch an activated adapter on.
    pub invocation: Option<Vec<TokenId>>,
    /// How it was merged from others, if it was, as JSON.
    pub recipe: Option<String>,
}

impl AdapterFile {
    /// Reads what is at `path`: a PEFT folder, its `adapter_model.safetensors`, or a GGUF LoRA. All of it is hashed.
    pub fn open(path: &Path) -> Result<Self, AdapterError> {
        Err(AdapterError::File { path: path.to_owned(), problem: "it is no adapter".to_owned() })
    }
}
