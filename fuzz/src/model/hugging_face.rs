//! Reads any bytes as the files of a model of transformers, and touches everything a sound one offers.

use std::fs::{self, File};
use std::io::Write;

use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::formats::gguf::facts::ModelFacts;
use ruvllm_model::{OpenError, open, read_config};

/// Stands between the files: no text has such a byte.
const SEPARATOR: u8 = 0xff;
/// Files in the order of the input. One that is empty is not there.
const FILES: [&str; 6] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "model.safetensors.index.json",
];
/// Follows a header that stands alone, so that inputs stay short.
const ZEROS: u64 = 1 << 20;

pub fn run(bytes: &[u8]) {
    match open_files(bytes) {
        Ok(model) => walk(&model),
        // The message is made of the files' bytes too.
        Err(error) => assert!(error.to_string().len() < 2_000),
    }
}

/// Opens a folder with the files of an input.
pub fn open_files(bytes: &[u8]) -> Result<Gguf, OpenError> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in FILES.iter().zip(bytes.split(|byte| *byte == SEPARATOR)) {
        let path = folder.path().join(name);
        match content {
            [] => {}
            // Only a header: it gets its length, and tensors.
            [b'{', ..] if *name == "model.safetensors" => {
                let mut file = File::create(path).expect("a file");
                file.write_all(&(content.len() as u64).to_le_bytes()).expect("it is written");
                file.write_all(content).expect("it is written");
                file.set_len(8 + content.len() as u64 + ZEROS).expect("it is longer");
            }
            content => fs::write(path, content).expect("it is written"),
        }
    }
    open(folder.path())
}

fn walk(model: &Gguf) {
    for tensor in model.tensors() {
        assert!(tensor.element_count() > 0);
        assert_eq!(tensor.bytes().len(), tensor.bytes_len());
    }
    let _ = ModelFacts::of(model);
    if let Err(error) = read_config(model) {
        assert!(error.to_string().len() < 2_000);
    }
}
