//! Folders of safetensors, which are presented as the GGUF files that llama.cpp's converter makes of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_kernels::{KernelSet, Pool, WeightType, dequantize_row};
use ruvllm_model::formats::gguf::{Gguf, Tensor, Value};
use ruvllm_model::quantize::{Job, Plan, Recipe, quantize_at_load};
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

/// What is packed at load is what a quantized file holds.
#[test]
fn weights_quantized_at_load_are_those_of_a_quantized_file() {
    let recipe = Recipe::Uniform(WeightType::Q8_0);
    let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 256).collect();
    let folder = tempfile::tempdir().expect("a folder");
    for source in safetensors_folders() {
        let path = folder.path().join("model.gguf");
        let mut gguf = open(&source).expect("a sound folder");
        let plan = Plan::new(&gguf, recipe).expect("it can be planned");
        let mut job = Job::begin(&plan, &path).expect("it can be written");
        while job.step().expect("all weights are numbers") {}
        job.finish().expect("it is finished");
        let written = open(&path).expect("a sound file");
        quantize_at_load(&mut gguf, recipe).expect("it can be quantized");
        let loaded: usize = gguf.tensors().map(|tensor| tensor.loaded_len()).sum();
        assert!(loaded < gguf.tensors().map(|tensor| tensor.bytes_len()).sum());
        let [got, want] = [&gguf, &written].map(|gguf| {
            let model = Arc::new(Model::load(gguf, 64, &mut |_| {}).expect("a sound model"));
            logits(&mut CpuRunner::new(model, Pool::new(2, KernelSet::best()), 64), &tokens, 40)
        });
        assert_eq!(got, want, "{}", source.display());
    }
}

#[test]
fn folders_that_are_not_understood_are_refused_by_name() {
    let source = safetensors_folders().into_iter().find(|folder| folder.ends_with("llama3")).expect("it is there");
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(source.join("config.json")).unwrap()).expect("JSON");
    let refusal = |change: &dyn Fn(&mut serde_json::Value), others: &[(&str, &str)]| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config.clone();
        change(&mut config);
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        std::fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        for (name, text) in others {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        match open(folder.path()) {
            Ok(gguf) => Model::load(&gguf, 64, &mut |_| {}).expect_err("it is wrong").to_string(),
            Err(error) => error.to_string(),
        }
    };
    let set =
        |key: &'static str, value: serde_json::Value| move |config: &mut serde_json::Value| config[key] = value.clone();
    for (key, value, expected) in [
        ("architectures", serde_json::json!(["FooForCausalLM"]), "\"FooForCausalLM\" is not supported"),
        ("architectures", serde_json::json!(null), "architectures is missing"),
        ("hidden_size", serde_json::json!("wide"), "hidden_size is \"wide\""),
        ("hidden_size", serde_json::json!(4_294_967_296u64), "must be a count"),
        ("num_hidden_layers", serde_json::json!(4_000_000_000u32), "is more than there are weights of"),
        ("num_hidden_layers", serde_json::json!(1), "blk.1."),
        ("num_attention_heads", serde_json::json!(0), "num_attention_heads"),
        ("num_attention_heads", serde_json::json!(7), "an even number of rows for each head"),
        ("rope_parameters", serde_json::json!({"rope_type": "dynamic", "factor": 2.0}), "\"dynamic\""),
        ("rope_parameters", serde_json::json!({"rope_type": "llama3"}), "rope_parameters.factor is missing"),
        ("quantization_config", serde_json::json!({"quant_method": "fp8"}), "\"fp8\", which is not supported"),
    ] {
        let error = refusal(&set(key, value), &[]);
        assert!(error.contains(expected), "{key}: {error}");
    }
    let nothing = |_: &mut serde_json::Value| {};
    let bpe = |pre: &str, vocab: &str| {
        format!(
            r#"{{"added_tokens":[],"normalizer":null,"pre_tokenizer":{pre},"model":{{"type":"BPE","vocab":{vocab},"merges":[]}}}}"#
        )
    };
    let bytes = r#"{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}"#;
    for (file, text, expected) in [
        ("tokenizer.model", String::new(), "tokenizer.model alone is not read"),
        ("tokenizer.json", "{".to_owned(), "tokenizer.json cannot be read"),
        ("tokenizer.json", "{}".to_owned(), "model is missing"),
        ("tokenizer.json", r#"{"model":{"type":"Unigram"}}"#.to_owned(), "\"Unigram\" is not supported"),
        ("tokenizer.json", bpe(r#"{"type":"Whitespace"}"#, "{}"), "Whitespace"),
        (
            "tokenizer.json",
            bpe(
                r#"{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}"#,
                "{}",
            ),
            "splits by [\"x+\"] is not known",
        ),
        ("tokenizer.json", bpe(bytes, r#"{"a":4000000000}"#), "has the id 4000000000, and the model has 256 tokens"),
        ("tokenizer.json", bpe(bytes, r#"{"a":1,"b":1}"#), "have the id 1"),
    ] {
        let error = refusal(&nothing, &[(file, &text)]);
        assert!(error.contains(expected), "{file}: {error}");
    }
}
