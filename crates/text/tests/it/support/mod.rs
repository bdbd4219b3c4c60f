//! What the integration tests share: where models are, and how to read a vocabulary from one.

mod gguf;

use std::path::{Path, PathBuf};

use gguf::Metadata;
use ruvllm_store::{Store, default_home};
use ruvllm_text::{TokenKind, Tokenizer, Vocabulary};

/// The default model's file, fetched on first use into the store that all tests share.
pub fn default_model() -> PathBuf {
    let store = Store::open(&default_home().expect("a home folder"));
    store.ensure("smollm2", &mut |_| {}).expect("the default model can be fetched").path
}

/// The folder with llama.cpp's `ggml-vocab-*.gguf` files and templates, if the environment names one.
pub fn tokenizer_vectors() -> Option<PathBuf> {
    let folder = std::env::var_os("RUVLLM_TOKENIZER_VECTORS").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: RUVLLM_TOKENIZER_VECTORS does not name a folder with llama.cpp's vendor/llama.cpp/models");
    }
    folder
}

pub fn load_tokenizer(path: &Path) -> Tokenizer {
    Tokenizer::from_vocabulary(load_vocabulary(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn load_vocabulary(path: &Path) -> Vocabulary {
    vocabulary(&Metadata::read(path))
}

/// The chat template that a model file carries.
pub fn load_chat_template(path: &Path) -> Option<String> {
    Metadata::read(path).string("tokenizer.chat_template")
}

fn vocabulary(metadata: &Metadata) -> Vocabulary {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.integer(&key(name)).map(|id| id as u32);
    let flag = |name: &str| metadata.integer(&key(name)).map(|flag| flag != 0);
    Vocabulary {
        model: metadata.string(&key("model")).expect("tokenizer.ggml.model"),
        pre: metadata.string(&key("pre")),
        tokens: metadata.strings(&key("tokens")),
        scores: metadata.floats(&key("scores")),
        kinds: metadata
            .integers(&key("token_type"))
            .into_iter()
            .map(|number| TokenKind::from_gguf(number as i32).expect("token type"))
            .collect(),
        merges: metadata.strings(&key("merges")),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        unk: id("unknown_token_id"),
        pad: id("padding_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        ..Default::default()
    }
}
