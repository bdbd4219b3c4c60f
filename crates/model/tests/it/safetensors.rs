//! Folders of safetensors, which are presented as the GGUF files that llama.cpp's converter makes of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_kernels::{KernelSet, Pool, dequantize_row};
use ruvllm_model::formats::gguf::{Gguf, Tensor, Value};
use ruvllm_model::{CpuRunner, Model, open};

use crate::architectures::{TOLERANCE, error, folders, logits, prompts};

/// The architectures of which safetensors are kept: each change of names, shapes and order is in one of them.
fn safetensors_folders() -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = folders().into_iter().filter(|folder| folder.join("config.json").exists()).collect();
    assert!(folders.len() >= 7, "safetensors are missing");
    folders
}

fn floats(tensor: &Tensor<'_>) -> Vec<f32> {
    let mut floats = vec![0.0; tensor.element_count()];
    for (row, bytes) in floats
        .chunks_exact_mut(tensor.dims[0])
        .zip(tensor.bytes().chunks_exact(tensor.kind.row_bytes(tensor.dims[0]).expect("whole blocks")))
    {
        dequantize_row(tensor.kind, bytes, row);
    }
    floats
}

/// Compares what is presented with a file that llama.cpp's converter wrote.
fn check(folder: &Path, reference: &Path) {
    let shown = folder.display();
    let ours = open(folder).unwrap_or_else(|error| panic!("{shown}: {error}"));
    let theirs = Gguf::open(reference).expect("a sound file");
    let architecture: &str = theirs.metadata().required("general.architecture").unwrap();
    for (key, value) in theirs.metadata().iter() {
        if key.starts_with(&format!("{architecture}.")) || key == "general.architecture" {
            let got = ours.metadata().get(key);
            match (got, value) {
                (Some(Value::Array(got)), Value::Array(want)) if got.integers().is_ok() => {
                    assert!(got.integers().unwrap().eq(want.integers().unwrap()), "{shown}: {key}");
                }
                (Some(Value::Array(got)), Value::Array(want)) => {
                    assert!(got.bools().unwrap().eq(want.bools().unwrap()), "{shown}: {key}");
                }
                _ => assert_eq!(got, Some(value), "{shown}: {key}"),
            }
        }
    }
    let names = |gguf: &Gguf| {
        let mut names: Vec<String> = gguf.tensors().map(|tensor| tensor.name.to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&ours), names(&theirs), "{shown}");
    for want in theirs.tensors() {
        let got = ours.tensor(want.name).unwrap();
        assert_eq!(got.dims, want.dims, "{shown}: {}", want.name);
        assert_eq!(got.bytes().len(), got.bytes_len(), "{shown}: {}", want.name);
        if got.kind == want.kind && got.bytes() == want.bytes() {
            continue;
        }
        // Exponentials and frequencies are computed in another way, and files with experts were widened.
        let widened = architecture == "gpt-oss" && want.name.contains("_exps.");
        assert!(got.kind == want.kind || widened, "{shown}: {} is {}, not {}", want.name, got.kind, want.kind);
        for (got, want_float) in floats(&got).iter().zip(floats(&want)) {
            assert!((got - want_float).abs() <= 1e-6 * want_float.abs(), "{shown}: {}: {got} {want_float}", want.name);
        }
    }
}

#[test]
fn folders_are_presented_as_llama_cpp_converts_them() {
    for folder in safetensors_folders() {
        check(&folder, &folder.join("model.gguf"));
        if folder.join("mxfp4").exists() {
            check(&folder.join("mxfp4"), &folder.join("quantized.gguf"));
        }
    }
}

#[test]
fn logits_of_safetensors_equal_those_of_transformers() {
    for folder in safetensors_folders() {
        let gguf = open(&folder).expect("a sound folder");
        for prompt in prompts(&folder) {
            let model = Model::load(&gguf, prompt.context, &mut |_| {});
            let model = Arc::new(model.unwrap_or_else(|error| panic!("{}: {error}", folder.display())));
            let mut runner = CpuRunner::new(model, Pool::new(2, KernelSet::best()), 64);
            let error = error(&logits(&mut runner, &prompt.tokens, 64), &prompt);
            println!("{}, {} tokens: {error}", folder.display(), prompt.tokens.len());
            assert!(error.le(&TOLERANCE), "{}: {error}", folder.display());
        }
    }
}
