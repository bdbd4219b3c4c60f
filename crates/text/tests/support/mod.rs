//! What the integration tests share: where models are, and how to read a vocabulary from one.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

mod gguf;

use std::path::{Path, PathBuf};

use gguf::Metadata;
use ruvllm_text::{TokenKind, Tokenizer, Vocabulary};

const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The default model's file. The tests that need it fail without it: skipping would hide that nothing was tested.
pub fn default_model() -> PathBuf {
    if let Some(path) = std::env::var_os("RUVLLM_TEST_MODEL") {
        return PathBuf::from(path);
    }
    let home = std::env::var_os("RUVLLM_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".ruvllm")));
    let models = home.unwrap_or_default().join("models");
    find_file(&models, DEFAULT_MODEL).unwrap_or_else(|| {
        panic!(
            "{DEFAULT_MODEL} is not in {}: fetch it with `ruvllm pull smollm2`, or set RUVLLM_TEST_MODEL to the file",
            models.display()
        )
    })
}

fn find_file(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let here = entries.iter().find(|path| path.file_name().is_some_and(|found| found == name) && path.is_file());
    here.cloned().or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|path| find_file(path, name)))
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
