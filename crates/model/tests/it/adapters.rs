//! Adapters on tiny models with random weights: the logits that PEFT computes for both (`tests/golden/adapters.py`), whoever else
//! is in the batch, and files that are no sound adapters.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_kernels::{KernelSet, Pool};
use ruvllm_model::adapters::merge::{BakedType, bake};
use ruvllm_model::adapters::{AdapterFile, AdapterFormat, pack};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::{CpuRunner, Model, RowLimits};
use ruvllm_runner::{
    AdapterId, Batch, BatchError, HeldAdapter, PageFormat, PageLocation, Rotation, RowsAdapter, Runner, RunnerError,
};

use crate::architectures::{TOLERANCE, adapted_logits, error, logits, prompts};

const CONTEXT: usize = 256;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// All adapters, and the model that each belongs to.
fn all() -> Vec<(PathBuf, Arc<Model>)> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(golden("adapters")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 10, "references are missing");
    folders.into_iter().map(|folder| (folder.clone(), base_of(&folder))).collect()
}

fn base_of(folder: &Path) -> Arc<Model> {
    let base = fs::read_to_string(folder.join("base")).unwrap();
    load(base.trim())
}

fn load(base: &str) -> Arc<Model> {
    let gguf = Gguf::open(golden("architectures").join(base).join("model.gguf")).expect("a sound file");
    Arc::new(Model::load(&gguf, CONTEXT, &mut |_| {}).expect("a sound model"))
}

fn runner(model: &Arc<Model>, set: KernelSet, rows: usize) -> CpuRunner {
    CpuRunner::new(Arc::clone(model), Pool::new(2, set), rows)
}

/// Loads adapters with weights into a runner, as one.
fn add(runner: &CpuRunner, model: &Model, files: &[(&AdapterFile, f32)], id: AdapterId) {
    runner.adapters().insert(id, Arc::new(pack(files, &model.adapter_targets()).expect("it fits")));
}

#[test]
fn logits_equal_those_of_peft() {
    let mut failures = Vec::new();
    for (folder, model) in all() {
        let files = [folder.clone(), folder.join("adapter.gguf")].into_iter().filter(|path| path.exists());
        for path in files {
            let file = AdapterFile::open(&path).expect("a sound adapter");
            let facts = file.check(&model.adapter_targets()).expect("it fits its base");
            assert_eq!(facts.changes_kv, !folder.to_string_lossy().ends_with("-last-layer"), "{}", path.display());
            for set in KernelSet::available() {
                for chunk in if set == KernelSet::best() { vec![64, 7, 1] } else { vec![16] } {
                    let mut runner = runner(&model, set, 64);
                    add(&runner, &model, &[(&file, 1.0)], file.id);
                    for prompt in prompts(&folder) {
                        let invocation = file.invocation.clone().map(Into::into);
                        let from = HeldAdapter::new(file.id, true, invocation, Arc::new(())).start(&prompt.tokens);
                        let adapter = Some(RowsAdapter { id: file.id, from });
                        let error = error(&adapted_logits(&mut runner, &prompt.tokens, chunk, adapter), &prompt);
                        println!("{}, {} tokens by {chunk}: {error}", path.display(), prompt.tokens.len());
                        if !error.le(&TOLERANCE) {
                            let (set, len) = (set.name(), prompt.tokens.len());
                            failures.push(format!("{} on {set}, {len} tokens by {chunk}: {error}", path.display()));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn what_a_file_says_is_known_without_its_model() {
    let file = AdapterFile::open(&golden("adapters/llama3-patterns")).unwrap();
    assert_eq!((file.format, file.ranks, file.alpha), (AdapterFormat::Peft, (2, 4), 6.0));
    assert_eq!(file.targets.len(), 7);
    assert!(file.targets.contains(&"self_attn.q_proj".to_owned()), "{:?}", file.targets);
    let gguf = AdapterFile::open(&golden("adapters/llama3-all/adapter.gguf")).unwrap();
    assert_eq!((gguf.format, gguf.ranks, gguf.architecture.as_deref()), (AdapterFormat::Gguf, (8, 8), Some("llama")));
    let weights = AdapterFile::open(&golden("adapters/llama3-patterns/adapter_model.safetensors")).unwrap();
    assert_eq!(weights.id, file.id, "the weights stand for their folder");
    assert_ne!(gguf.id, file.id);
    let activated = AdapterFile::open(&golden("adapters/llama3-activated")).unwrap();
    assert_eq!(activated.invocation, Some(vec![7, 11, 13]));
}

/// A sequence of a batch: its tokens, and its adapter.
type Sequence = (Vec<u32>, Option<RowsAdapter>);

/// Runs sequences as one batch. Gives the logits of the last row of each.
fn run(runner: &mut CpuRunner, sequences: &[Sequence]) -> Result<Vec<Vec<f32>>, RunnerError> {
    run_rows(runner, sequences, false)
}

fn run_rows(runner: &mut CpuRunner, sequences: &[Sequence], are_fast: bool) -> Result<Vec<Vec<f32>>, RunnerError> {
    let page_bytes = runner.limits().kv_shape.page_bytes(PageFormat::F16);
    runner.reserve_pages(2 * sequences.len() * page_bytes, Rotation::None);
    let mut batch = Batch::default();
    for (number, (tokens, adapter)) in sequences.iter().enumerate() {
        let pages = (2 * number..2 * number + 2)
            .map(|page| PageLocation { offset: page * page_bytes, format: PageFormat::F16 });
        batch.push(0, tokens.iter().copied(), 1, pages, *adapter);
        if are_fast {
            batch.set_fast();
        }
    }
    runner.submit(&batch)?;
    runner.wait()?;
    Ok((0..sequences.len()).map(|i| runner.logits(i).to_vec()).collect())
}

#[test]
fn each_row_has_the_bits_that_it_has_alone() {
    let model = load("llama3");
    let names = ["llama3-qv", "llama3-all", "llama3-patterns", "llama3-activated"];
    let files = names.map(|name| AdapterFile::open(&golden("adapters").join(name)).unwrap());
    for set in KernelSet::available() {
        let mut runner = runner(&model, set, 1024);
        // 32 adapters: the four, by weights.
        let id = |number: usize| AdapterId([number as u8; 32]);
        for number in 0..32 {
            add(&runner, &model, &[(&files[number % 4], 1.0 + (number / 4) as f32 / 8.0)], id(number));
        }
        let sequence = |number: usize| {
            // Short ones and longer ones, some without an adapter, some with one from the middle on.
            let tokens: Vec<u32> = (0..1 + number * 5 % 30).map(|i| ((i * 37 + number * 11) % 256) as u32).collect();
            let adapter = RowsAdapter { id: id(number), from: if number % 5 == 3 { tokens.len() / 2 } else { 0 } };
            (tokens, (number % 7 != 6).then_some(adapter))
        };
        let alone: Vec<Vec<f32>> =
            (0..32).map(|number| run(&mut runner, &[sequence(number)]).unwrap().remove(0)).collect();
        for count in [2, 8, 32] {
            let together: Vec<Sequence> = (0..count).map(sequence).collect();
            let got = run(&mut runner, &together).unwrap();
            assert!(got == alone[..count], "{count} on {}", set.name());
        }
        // The same adapter for several rows that are apart.
        let (mut same, other) = (sequence(1), sequence(2));
        same.0.truncate(1);
        let got = run(&mut runner, &[same.clone(), other, same.clone(), same.clone()]).unwrap();
        let alone = run(&mut runner, &[same]).unwrap();
        assert!([0, 2, 3].iter().all(|i| got[*i] == alone[0]));
    }
}

#[test]
fn rows_of_prompts_in_bf16_have_adapters_too() {
    let model = load("llama3");
    let rows = RowLimits { all: 64, logits: 64, has_fast: true };
    let mut runner = CpuRunner::with_rows(Arc::clone(&model), Pool::new(2, KernelSet::best()), rows);
    if !runner.limits().has_fast_rows {
        return;
    }
    let file = AdapterFile::open(&golden("adapters/llama3-all")).unwrap();
    add(&runner, &model, &[(&file, 1.0)], file.id);
    let adapter = Some(RowsAdapter { id: file.id, from: 0 });
    let (one, other): (Vec<u32>, Vec<u32>) = ((0..30).map(|i| i * 7).collect(), (0..17).map(|i| i * 11).collect());
    let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let exact = run(&mut runner, &[(one.clone(), adapter)]).unwrap();
    let fast = run_rows(&mut runner, &[(one.clone(), adapter)], true).unwrap();
    let plain = run_rows(&mut runner, &[(one.clone(), None)], true).unwrap();
    assert!(apart(&fast[0], &exact[0]) < 0.3, "{}", apart(&fast[0], &exact[0]));
    assert!(apart(&fast[0], &plain[0]) > 1.0, "{}", apart(&fast[0], &plain[0]));
    let together = run_rows(&mut runner, &[(other, None), (one, adapter)], true).unwrap();
    assert!(together[1] == fast[0], "whatever else runs");
}

#[test]
fn rows_without_an_adapter_are_as_if_there_were_none() {
    let model = load("qwen2");
    let file = AdapterFile::open(&golden("adapters/qwen2-attention")).unwrap();
    let mut runner = runner(&model, KernelSet::best(), 64);
    let tokens: Vec<u32> = (0..20).map(|i| i * 11 % 256).collect();
    let before = logits(&mut runner, &tokens, 64);
    add(&runner, &model, &[(&file, 1.0)], file.id);
    let from_the_middle = Some(RowsAdapter { id: file.id, from: 12 });
    let adapted = adapted_logits(&mut runner, &tokens, 64, from_the_middle);
    assert!(adapted[..12] == before[..12] && adapted[12..].iter().zip(&before[12..]).all(|(a, b)| a != b));
    assert!(adapted == adapted_logits(&mut runner, &tokens, 5, from_the_middle), "chunks change nothing");
    assert!(adapted_logits(&mut runner, &tokens, 64, Some(RowsAdapter { id: file.id, from: 20 })) == before);
    assert!(logits(&mut runner, &tokens, 64) == before);
}

#[test]
fn several_adapters_add_up_by_their_weights() {
    let model = load("llama3");
    let file = AdapterFile::open(&golden("adapters/llama3-patterns")).unwrap();
    let mut runner = runner(&model, KernelSet::best(), 64);
    let [one, two, none] = [1, 2, 3].map(|number| AdapterId([number; 32]));
    add(&runner, &model, &[(&file, 1.0)], one);
    add(&runner, &model, &[(&file, 0.75), (&file, 0.25)], two);
    add(&runner, &model, &[(&file, 1.0), (&file, -1.0)], none);
    let tokens: Vec<u32> = (0..20).map(|i| i * 11 % 256).collect();
    let plain = logits(&mut runner, &tokens, 64);
    let mut with = |id| adapted_logits(&mut runner, &tokens, 64, Some(RowsAdapter { id, from: 0 }));
    let apart = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let (one, two, none) = (with(one), with(two), with(none));
    assert!(apart(&one, &plain) > 0.1);
    assert!(apart(&one, &two) < TOLERANCE, "{}", apart(&one, &two));
    assert!(apart(&none, &plain) < TOLERANCE, "{}", apart(&none, &plain));
}

#[test]
fn an_adapter_that_is_applied_is_one_that_is_merged() {
    for (name, base) in [("llama3-all", "llama3"), ("qwen2-attention", "qwen2"), ("phi3-all", "phi3")] {
        let (model, file) = (load(base), AdapterFile::open(&golden("adapters").join(name)).unwrap());
        let gguf = Gguf::open(golden("architectures").join(base).join("model.gguf")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baked.gguf");
        let targets = model.adapter_targets();
        bake(&gguf, &targets, &[(&file, 0.7)], BakedType::F32, &path, &mut |_| {}).expect("it fits");
        let baked = Arc::new(Model::load(&Gguf::open(&path).unwrap(), CONTEXT, &mut |_| {}).expect("a sound model"));
        let tokens: Vec<u32> = (0..40).map(|i| i * 13 % 256).collect();
        let mut applied = runner(&model, KernelSet::best(), 64);
        add(&applied, &model, &[(&file, 0.7)], file.id);
        let got = adapted_logits(&mut applied, &tokens, 64, Some(RowsAdapter { id: file.id, from: 0 }));
        let want = logits(&mut runner(&baked, KernelSet::best(), 64), &tokens, 64);
        let apart = got.iter().flatten().zip(want.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 0.005, "{name}: {apart}");
    }
}

#[test]
fn a_batch_with_an_adapter_that_is_not_loaded_is_refused() {
    let model = load("llama3");
    let mut runner = runner(&model, KernelSet::best(), 8);
    let refused = run(&mut runner, &[(vec![1], Some(RowsAdapter { id: AdapterId([9; 32]), from: 0 }))]);
    assert_eq!(refused.unwrap_err(), RunnerError::Batch(BatchError::NoSuchAdapter));
    assert!(run(&mut runner, &[(vec![1], None)]).is_ok());
}

/// A copy of an adapter with its settings, or the header of its weights, replaced.
fn changed(name: &str, settings: impl Fn(String) -> String, weights: impl Fn(Vec<u8>) -> Vec<u8>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let source = golden("adapters").join(name);
    let text = fs::read_to_string(source.join("adapter_config.json")).unwrap();
    fs::write(folder.path().join("adapter_config.json"), settings(text)).unwrap();
    let bytes = fs::read(source.join("adapter_model.safetensors")).unwrap();
    fs::write(folder.path().join("adapter_model.safetensors"), weights(bytes)).unwrap();
    let checked = AdapterFile::open(folder.path()).and_then(|file| file.check(&load("llama3").adapter_targets()));
    checked.expect_err("no sound adapter").to_string()
}

/// Replaces a text in the header by one that is as long, wherever it is.
fn in_header(mut bytes: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let places: Vec<usize> =
        (0..bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from.as_bytes())).collect();
    assert!(!places.is_empty(), "the header has it");
    places.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
    bytes
}

#[test]
fn settings_that_cannot_be_honoured_are_refused_by_name() {
    let with = |key: &str, value: &str| {
        let set = |text: String| {
            let mut settings: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
            settings.insert(key.to_owned(), serde_json::from_str(value).unwrap());
            serde_json::to_string(&settings).unwrap()
        };
        changed("llama3-qv", set, |bytes| bytes)
    };
    for (key, value) in [
        ("use_dora", "true"),
        ("modules_to_save", r#"["lm_head"]"#),
        ("lora_bias", "true"),
        ("bias", r#""all""#),
        ("trainable_token_indices", "[1, 2]"),
        ("target_parameters", r#"["mlp.experts"]"#),
        ("peft_type", r#""LOHA""#),
        ("init_lora_weights", r#""pissa_niter_4""#),
        ("layer_replication", "[[0, 1]]"),
        ("fan_in_fan_out", "true"),
        ("r", "0"),
        ("r", "1e300"),
        ("r", r#""8""#),
        ("use_rslora", "3"),
        ("rank_pattern", "[1]"),
        ("rank_pattern", r#"{"(": 4}"#),
        ("rank_pattern", r#"{"((((q{1000}){1000}){1000}){1000}": 4}"#),
        ("alpha_pattern", r#"{"q_proj": "x"}"#),
        ("target_modules", "7"),
        ("layers_to_transform", r#""all""#),
        ("alora_invocation_tokens", "[-1]"),
        ("alora_invocation_tokens", r#""<tag>""#),
    ] {
        let message = with(key, value);
        assert!(message.contains(key), "{key} = {value}: {message}");
    }
    assert!(with("r", "8").contains("rank 4"), "what the settings say must be true");
    assert!(changed("llama3-qv", |_| "[".repeat(1 << 20), |bytes| bytes).contains("adapter_config.json"));
    assert!(changed("llama3-qv", |_| "7".to_owned(), |bytes| bytes).contains("object"));
}

#[test]
fn weights_that_do_not_fit_or_are_damaged_are_refused_by_tensor() {
    let with = |change: &dyn Fn(Vec<u8>) -> Vec<u8>| changed("llama3-qv", |text| text, change);
    let header = |from: &'static str, to: &'static str| with(&move |bytes| in_header(bytes, from, to));
    for (message, parts) in [
        (with(&|bytes| bytes[..bytes.len() / 2].to_vec()), vec!["adapter_model.safetensors"]),
        (with(&|_| Vec::new()), vec!["too few"]),
        (
            with(&|mut bytes| {
                bytes[..8].fill(0xff);
                bytes
            }),
            vec!["header"],
        ),
        (
            with(&|mut bytes| {
                let len = bytes.len();
                bytes[len - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
                bytes
            }),
            vec!["NaN"],
        ),
        (
            with(&|mut bytes| {
                let len = bytes.len();
                bytes[len - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
                bytes
            }),
            vec!["inf"],
        ),
        (header("layers.1.self_attn.v_proj", "layers.7.self_attn.v_proj"), vec!["layers.7", "2 layers"]),
        (header("layers.1.self_attn.v_proj", "layers.1.self_attn.z_proj"), vec!["z_proj", "attn_q"]),
        (header("layers.1.self_attn.v_proj.lora_A", "layers.1.self_attn.v_proj.lora_C"), vec!["lora_C"]),
        (header("layers.1.self_attn.v_proj", "../../../../../../etc/pas"), vec!["../../"]),
        (header("base_model.model.model.layers.0", "else_model.model.model.layers.0"), vec!["base_model"]),
    ] {
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
    }
    let other = AdapterFile::open(&golden("adapters/gemma3-all")).unwrap();
    let message = other.check(&load("llama3").adapter_targets()).unwrap_err().to_string();
    assert!(message.contains("shape") && message.contains("another model"), "{message}");
    let gguf = AdapterFile::open(&golden("adapters/llama3-all/adapter.gguf")).unwrap();
    let message = gguf.check(&load("qwen2").adapter_targets()).unwrap_err().to_string();
    assert!(message.contains("llama") && message.contains("qwen2"), "{message}");
    let model = AdapterFile::open(&golden("architectures/llama3/model.gguf")).unwrap_err().to_string();
    assert!(model.contains("general.type") && model.contains("not a model"), "{model}");
    assert!(AdapterFile::open(Path::new("/nonexistent")).unwrap_err().to_string().contains("/nonexistent"));
}
