//! Our tokenizers against llama.cpp's published vectors.
//!
//! The files come with the source package of llama-cpp-python (`pip download --no-binary :all: --no-deps`), under
//! vendor/llama.cpp/models; RUVLLM_TOKENIZER_VECTORS names that folder. They are too large to keep here.

use crate::support;
use std::path::Path;
use std::sync::Arc;

use ruvllm_text::{Detokenizer, SpecialTokens, Tokenizer};

/// Vocabularies of kinds that this crate does not build from model files.
const NOT_SUPPORTED: [&str; 1] = ["bert-bge"];
const AT_LEAST: usize = 12;

#[test]
fn token_ids_are_those_of_llama_cpp() {
    let Some(folder) = support::tokenizer_vectors() else { return };
    let mut failures = Vec::new();
    let names = vector_names(&folder);
    assert!(names.len() >= AT_LEAST, "{} has only the vectors {names:?}", folder.display());
    for name in names {
        let tokenizer = support::load_tokenizer(&folder.join(format!("ggml-vocab-{name}.gguf")));
        let vectors = read_vectors(&folder, &name);
        let wrong: Vec<String> = vectors.iter().filter_map(|(text, ids)| mismatch(&tokenizer, text, ids)).collect();
        println!("{name}: {} of {} agree", vectors.len() - wrong.len(), vectors.len());
        failures.extend(wrong.into_iter().map(|wrong| format!("{name}: {wrong}")));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn decoding_gives_the_text_back() {
    let Some(folder) = support::tokenizer_vectors() else { return };
    for name in vector_names(&folder) {
        let tokenizer = Arc::new(support::load_tokenizer(&folder.join(format!("ggml-vocab-{name}.gguf"))));
        for (text, ids) in read_vectors(&folder, &name) {
            if text.chars().any(|char| tokenizer.first_unencodable(char.encode_utf8(&mut [0; 4])).is_some()) {
                continue;
            }
            let mut detokenizer = Detokenizer::from_start(tokenizer.clone());
            let mut decoded: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
            decoded += &detokenizer.flush();
            assert_eq!(decoded, text, "{name}");
        }
    }
}

#[test]
fn spelling_a_control_token_does_not_make_one() {
    let Some(folder) = support::tokenizer_vectors() else { return };
    for name in vector_names(&folder) {
        let tokenizer = support::load_tokenizer(&folder.join(format!("ggml-vocab-{name}.gguf")));
        let controls = (0..tokenizer.vocab_size() as u32).filter(|&id| tokenizer.is_control(id));
        let everything: String = controls.map(|id| format!("{0} x{0}{0}", tokenizer.token_text(id))).collect();
        let ids = tokenizer.encode(&everything, SpecialTokens::AsText);
        assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "{name}");
        let ids = tokenizer.encode(&everything, SpecialTokens::Parse);
        assert!(ids.iter().any(|&id| tokenizer.is_control(id)), "{name}");
    }
}

fn mismatch(tokenizer: &Tokenizer, text: &str, expect: &[u32]) -> Option<String> {
    let got = tokenizer.encode(text, SpecialTokens::AsText);
    (got != expect).then(|| format!("{text:?}\n  expected {expect:?}\n  got      {got:?}"))
}

fn vector_names(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> = files
        .flatten()
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            Some(name.strip_prefix("ggml-vocab-")?.strip_suffix(".gguf.out")?.to_owned())
        })
        .filter(|name| !NOT_SUPPORTED.contains(&name.as_str()))
        .collect();
    names.sort();
    names
}

/// Texts stand in the .inp file with a divider line between them, their ids in the .out file, one line each.
fn read_vectors(folder: &Path, name: &str) -> Vec<(String, Vec<u32>)> {
    let read = |ending: &str| {
        let path = folder.join(format!("ggml-vocab-{name}.gguf.{ending}"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (texts, ids) = (read("inp"), read("out"));
    // The file ends with a divider too.
    let texts: Vec<&str> = texts.split_terminator("\n__ggml_vocab_test__\n").collect();
    assert_eq!(texts.len(), ids.lines().count(), "{name}");
    let ids = ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().expect("token id")).collect());
    texts.into_iter().map(str::to_owned).zip(ids).collect()
}
