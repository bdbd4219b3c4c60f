//! Reads the vocabulary of a GGUF file into the form that the text crate wants.

use ruvllm_model::formats::gguf::{Array, Metadata, MetadataError};
use ruvllm_text::{TokenKind, Vocabulary, VocabularyError};

/// Why a file's vocabulary cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
}

pub(crate) fn read(metadata: Metadata<'_>) -> Result<Vocabulary, ReadError> {
    let id = |role: &str| metadata.optional::<u32>(&format!("tokenizer.ggml.{role}_token_id"));
    let flag = |name: &str| metadata.optional::<bool>(&format!("tokenizer.ggml.{name}"));
    let array = |name: &str| metadata.optional::<Array<'_>>(&format!("tokenizer.ggml.{name}"));
    let kinds = match array("token_type")? {
        Some(kinds) => kinds.numbers::<i32>()?.map(TokenKind::from_gguf).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let scores = match array("scores")? {
        Some(scores) => scores.numbers::<f32>()?.collect(),
        None => Vec::new(),
    };
    Ok(Vocabulary {
        model: metadata.required::<&str>("tokenizer.ggml.model")?.to_owned(),
        pre: metadata.optional::<&str>("tokenizer.ggml.pre")?.map(str::to_owned),
        tokens: strings(metadata.required("tokenizer.ggml.tokens")?)?,
        scores,
        kinds,
        merges: array("merges")?.map(strings).transpose()?.unwrap_or_default(),
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        unk: id("unknown")?,
        pad: id("padding")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        ..Vocabulary::default()
    })
}

fn strings(array: Array<'_>) -> Result<Vec<String>, MetadataError> {
    array.strings()?.map(|text| text.map(str::to_owned)).collect()
}
