//! What several test files need: the default model, and the references of other implementations.

#![allow(dead_code)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ruvllm_engine::{Event, Request, SequenceId};
use ruvllm_runtime::{DiskStore, Engine, PageKey};
use ruvllm_store::{Store, default_home};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The default model, fetched on first use into the store that all tests share.
pub fn smollm2() -> PathBuf {
    model("smollm2")
}

/// The model for embeddings, from the same store.
pub fn minilm() -> PathBuf {
    model("minilm")
}

/// A model of the catalogue, from the same store.
pub fn model(name: &str) -> PathBuf {
    let store = Store::open(&default_home().expect("a home folder"));
    store.ensure(name, &mut |_| {}).unwrap_or_else(|error| panic!("{name} can be fetched: {error}")).path
}

/// A home folder of its own, with the default model and whatever else the shared store has.
pub fn home() -> TempDir {
    smollm2();
    let home = tempfile::tempdir().expect("a folder");
    let models = default_home().expect("a home folder").join("models");
    std::os::unix::fs::symlink(models, home.path().join("models")).expect("a link");
    home
}

/// The program of mistral.rs that `RUVLLM_MISTRALRS` names. Tests with it are skipped, and say so, where it names none.
pub fn mistralrs() -> Option<PathBuf> {
    let named = std::env::var_os("RUVLLM_MISTRALRS").map(PathBuf::from);
    if named.is_none() {
        eprintln!("skipped: RUVLLM_MISTRALRS does not name the program of mistral.rs");
    }
    named
}

/// A tiny model as a folder of safetensors: its tokens are bytes, and it says how they are chosen.
pub fn safetensors_folder(generation: &Value) -> TempDir {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/architectures/llama3");
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(source.join(file), folder.path().join(file)).expect("room for a copy");
    }
    let vocab: serde_json::Map<String, Value> =
        (0..=255).map(|byte| (byte_token(byte).to_string(), byte.into())).collect();
    let end = byte_token(0).to_string();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}";
    for (file, content) in [
        ("generation_config.json", generation.clone()),
        ("tokenizer_config.json", json!({ "eos_token": end, "chat_template": template })),
        (
            "tokenizer.json",
            json!({ "added_tokens": [{ "id": 0, "content": end, "special": true }], "normalizer": null,
                    "pre_tokenizer": bytes, "model": { "type": "BPE", "vocab": vocab, "merges": [] } }),
        ),
    ] {
        std::fs::write(folder.path().join(file), content.to_string()).expect("room for a file");
    }
    folder
}

/// The character that stands for a byte in tokens of GPT-2: itself where it can be seen, otherwise one from 256 on.
fn byte_token(byte: u8) -> char {
    let is_seen = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    match is_seen(byte) {
        true => byte.into(),
        false => char::from_u32(256 + (0..byte).filter(|byte| !is_seen(*byte)).count() as u32).expect("a character"),
    }
}

/// A gigabyte of disk, always with the same key.
pub fn disk(folder: &Path) -> DiskStore {
    DiskStore::open(folder, 1 << 30, PageKey::new(&[1; 32])).expect("the folder can be used")
}

pub fn engine() -> Engine {
    Engine::builder(smollm2()).context(Some(1024)).build().expect("the default model loads")
}

/// Runs all requests together; new ones join while others run. Gives what each of them caused. In the end all pages
/// must be free or cached.
pub fn run_together(engine: &mut Engine, requests: &[Request]) -> Vec<Vec<Event>> {
    let mut core = engine.core();
    let mut ids: Vec<SequenceId> = Vec::new();
    let mut events: HashMap<SequenceId, Vec<Event>> = HashMap::new();
    let mut waiting = requests.iter();
    loop {
        if let Some(request) = waiting.next() {
            ids.push(core.submit(request.clone()).expect("a sound request"));
        } else if core.is_idle() {
            break;
        }
        for event in core.step() {
            let event = event.expect("sound logits");
            events.entry(event.sequence).or_default().push(event);
        }
    }
    let stats = core.cache_stats();
    assert_eq!(stats.pages, stats.cached_pages, "all pages are given back or cached");
    ids.iter().map(|id| events.remove(id).expect("every request is answered")).collect()
}

/// A prompt with what other implementations compute for it.
pub struct Golden {
    pub name: String,
    pub text: String,
    pub tokens: Vec<u32>,
    /// llama.cpp's 20 highest logits after the prompt.
    pub top: Vec<(u32, f32)>,
    /// The same logits computed in plain floats, without rounding of activations.
    pub exact: Vec<f32>,
    /// llama.cpp's greedy continuation.
    pub greedy: Vec<u32>,
    /// How far its choice was ahead of the second-best at each step.
    pub margins: Vec<f32>,
}

fn exact() -> &'static Value {
    static FILE: OnceLock<Value> = OnceLock::new();
    FILE.get_or_init(|| serde_json::from_str(include_str!("../golden/exact.json")).expect("the references are JSON"))
}

fn references() -> &'static Value {
    static FILE: OnceLock<Value> = OnceLock::new();
    FILE.get_or_init(|| {
        serde_json::from_str(include_str!("../golden/llama_cpp.json")).expect("the references are JSON")
    })
}

pub fn golden() -> Vec<Golden> {
    let prompts = references()["prompts"].as_array().expect("prompts");
    prompts.iter().map(parse).collect()
}

fn parse(prompt: &Value) -> Golden {
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(prompt[key].clone()).expect("token ids") };
    let floats = |value: &Value| -> Vec<f32> { serde_json::from_value(value.clone()).expect("numbers") };
    let name = prompt["name"].as_str().expect("a name");
    Golden {
        name: name.to_owned(),
        text: prompt["text"].as_str().expect("a text").to_owned(),
        tokens: ids("tokens"),
        top: serde_json::from_value(prompt["top"].clone()).expect("pairs of token and logit"),
        exact: floats(&exact()[name]),
        greedy: ids("greedy"),
        margins: floats(&prompt["margins"]),
    }
}

/// llama.cpp's perplexity of the text in `tests/data`, by context.
pub fn golden_perplexity() -> Vec<(usize, f64)> {
    let entries = references()["perplexity"].as_array().expect("perplexities");
    entries
        .iter()
        .map(|entry| (entry["context"].as_u64().expect("context") as usize, entry["value"].as_f64().expect("value")))
        .collect()
}

/// Logits after the last of `tokens`.
pub fn logits(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    let mut found = Vec::new();
    let last = tokens.len() - 1;
    engine.core().evaluate(tokens, last..last + 1, |_, logits| found = logits.to_vec()).expect("the prompt fits");
    found
}

/// Root of the mean squared difference.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (squares / a.len() as f64).sqrt()
}

/// The sources of the included kernel pack in a folder, whose kernels fail from the call with this number on.
pub fn failing_kernels(folder: &Path, calls: u32) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs/standard");
    let copy = folder.join("failing");
    std::fs::create_dir_all(copy.join("src")).expect("it is made");
    std::fs::copy(source.join("kernels.json"), copy.join("kernels.json")).expect("it is copied");
    for file in std::fs::read_dir(source.join("src")).expect("sources") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), copy.join("src").join(file.file_name())).expect("it is copied");
    }
    let text = std::fs::read_to_string(copy.join("src/lib.rs")).expect("a file");
    let counter = format!(
        "static CALLS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);\n
        fn count() -> bool {{ CALLS.fetch_add(1, core::sync::atomic::Ordering::Relaxed) >= {calls} }}\n"
    );
    let body = "            if count() {\n                core::arch::wasm32::unreachable();\n            }\n";
    let begin = "pub extern \"C\" fn $name(descriptor: u32) -> i32 {\n";
    assert!(text.contains(begin));
    let text = text.replace(begin, &format!("{begin}{body}"));
    std::fs::write(copy.join("src/lib.rs"), format!("{text}\n{counter}")).expect("it is written");
    copy
}
