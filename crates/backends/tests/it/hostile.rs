//! Folders that are not what they claim: every fault is an error that names it.

use std::fs;
use std::path::Path;

use ruvllm_backends::{Encoder, LoadError};
use serde_json::{Value, json};
use tempfile::TempDir;

const HIDDEN: usize = 4;

/// The smallest model that loads.
fn sound() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config().to_string()).unwrap();
    fs::write(folder.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
    fs::write(folder.path().join("model.safetensors"), safetensors(&tensors(1))).unwrap();
    folder
}

fn config() -> Value {
    json!({ "model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 8, "vocab_size": 5, "max_position_embeddings": 16, "layer_norm_eps": 1e-12,
            "hidden_act": "gelu", "type_vocab_size": 2, "pad_token_id": 0 })
}

fn tokenizer() -> Value {
    json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": { "type": "BertPreTokenizer" }, "post_processor": null, "decoder": null,
            "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                       "max_input_chars_per_word": 100, "vocab": { "[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3 } } })
}

type Tensors = Vec<(String, Vec<usize>)>;

fn tensors(layers: usize) -> Tensors {
    let mut all: Tensors = Vec::new();
    let mut add = |name: String, shape: &[usize]| all.push((name, shape.to_vec()));
    add("embeddings.word_embeddings.weight".into(), &[5, HIDDEN]);
    add("embeddings.position_embeddings.weight".into(), &[16, HIDDEN]);
    add("embeddings.token_type_embeddings.weight".into(), &[2, HIDDEN]);
    let mut pair = |name: String, outputs: usize, inputs: Option<usize>| {
        let shape: Vec<usize> = std::iter::once(outputs).chain(inputs).collect();
        add(format!("{name}.weight"), &shape);
        add(format!("{name}.bias"), &[outputs]);
    };
    pair("embeddings.LayerNorm".into(), HIDDEN, None);
    for layer in 0..layers {
        let at = |name: &str| format!("encoder.layer.{layer}.{name}");
        for name in ["query", "key", "value"] {
            pair(at(&format!("attention.self.{name}")), HIDDEN, Some(HIDDEN));
        }
        pair(at("attention.output.dense"), HIDDEN, Some(HIDDEN));
        pair(at("attention.output.LayerNorm"), HIDDEN, None);
        pair(at("intermediate.dense"), 8, Some(HIDDEN));
        pair(at("output.dense"), HIDDEN, Some(8));
        pair(at("output.LayerNorm"), HIDDEN, None);
    }
    pair("pooler.dense".into(), HIDDEN, Some(HIDDEN));
    all
}

/// A file with all numbers 0.
fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }));
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![0; end]].concat()
}

fn open(folder: &Path) -> Result<Encoder, LoadError> {
    Encoder::open(&folder.join("model.safetensors"))
}

/// The error of a folder in which one file was replaced.
fn error_with(file: &str, content: impl AsRef<[u8]>) -> String {
    let folder = sound();
    fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
    fs::write(folder.path().join(file), content).unwrap();
    open(folder.path()).expect_err("it must be refused").to_string()
}

#[test]
fn the_sound_one_loads() {
    open(sound().path()).unwrap();
}

#[test]
fn sizes_out_of_range_are_told_with_the_field() {
    for (field, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(1_000_000_000)),
        ("num_hidden_layers", json!(100_000)),
        ("num_attention_heads", json!(3)),
        ("intermediate_size", json!(0)),
        ("vocab_size", json!(1_u64 << 40)),
        ("max_position_embeddings", json!(1)),
        ("layer_norm_eps", json!(-1.0)),
        ("hidden_act", json!("swish")),
        ("model_type", json!("t5")),
        ("pad_token_id", json!(99)),
        ("position_embedding_type", json!("relative_key")),
    ] {
        let mut changed = config();
        changed[field] = value;
        let error = error_with("config.json", changed.to_string());
        assert!(error.contains(field), "{field}: {error}");
    }
}

#[test]
fn files_that_are_missing_broken_or_endless_are_told_by_their_path() {
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let folder = sound();
        fs::remove_file(folder.path().join(file)).unwrap();
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(file), "{error}");
        for content in ["", "{", "[]", "\0\0\0\0\0\0\0\0\0"] {
            let error = error_with(file, content);
            assert!(error.contains(file), "{error}");
        }
    }
    let error = error_with("config.json", " ".repeat(2 << 20));
    assert!(error.contains("larger than"), "{error}");
    let error = error_with("1_Pooling/config.json", r#"{ "pooling_mode_max_tokens": true }"#);
    assert!(error.contains("pooling_mode"), "{error}");
    let error = error_with("sentence_bert_config.json", r#"{ "max_seq_length": 0 }"#);
    assert!(error.contains("max_seq_length"), "{error}");
}

#[test]
fn tensors_that_are_missing_or_of_another_shape_are_told_by_name() {
    for index in 0..tensors(1).len() - 2 {
        let mut fewer = tensors(1);
        let (name, _) = fewer.remove(index);
        let error = error_with("model.safetensors", safetensors(&fewer));
        assert!(error.contains(&name), "{name}: {error}");
        let mut larger = tensors(1);
        larger[index].1[0] += 1;
        let error = error_with("model.safetensors", safetensors(&larger));
        assert!(error.contains(&name) && error.contains("shape"), "{name}: {error}");
    }
    let error = error_with("model.safetensors", safetensors(&tensors(2)));
    assert!(error.contains("encoder.layer.1.") && error.contains("no place"), "{error}");
}

#[test]
fn a_tokenizer_with_more_tokens_than_the_model_is_refused() {
    let mut larger = tokenizer();
    larger["model"]["vocab"]["z"] = json!(5);
    let error = error_with("tokenizer.json", larger.to_string());
    assert!(error.contains("vocab_size"), "{error}");
}

#[test]
fn headers_that_lie_about_sizes_do_not_take_memory() {
    let huge = u64::MAX.to_le_bytes();
    error_with("model.safetensors", huge);
    let header = r#"{"embeddings.word_embeddings.weight":{"dtype":"F32","shape":[5,4],"data_offsets":[0,80]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    error_with("model.safetensors", file);
}
