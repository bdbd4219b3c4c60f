//! Every architecture on a tiny model with random weights: the logits that transformers computes for it
//! (`tests/golden/architectures.py`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_kernels::{KernelSet, Pool, WeightType};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::quantize::{Job, Plan, Recipe};
use ruvllm_model::{CpuRunner, Model};
use ruvllm_runner::{Batch, PAGE_TOKENS, PageFormat, PageLocation, Rotation, RowsAdapter, Runner, StateSlot};
use serde_json::Value;

/// Keys and values are rounded to half floats in both; a last bit of difference can round one to another.
pub(crate) const TOLERANCE: f32 = 2e-3;
const CONTEXT: usize = 256;

pub(crate) fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/architectures");
    let mut folders: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 10, "references are missing");
    folders
}

/// A prompt, and the logits that are known of it.
pub(crate) struct Prompt {
    pub tokens: Vec<u32>,
    /// By their number.
    rows: Vec<(usize, Vec<f32>)>,
    /// What the model is loaded for: some rotate differently for longer contexts.
    pub context: usize,
}

pub(crate) fn prompts(folder: &Path) -> Vec<Prompt> {
    let reference: Value = serde_json::from_slice(&fs::read(folder.join("logits.json")).unwrap()).unwrap();
    let prompt = |prompt: &Value| Prompt {
        tokens: serde_json::from_value(prompt["tokens"].clone()).expect("token ids"),
        rows: (prompt["rows"].as_object().expect("rows").iter())
            .map(|(row, logits)| (row.parse().expect("a row"), serde_json::from_value(logits.clone()).expect("logits")))
            .collect(),
        context: if prompt["factors"] == "short" { 64 } else { CONTEXT },
    };
    reference["prompts"].as_array().expect("prompts").iter().map(prompt).collect()
}

/// The logits after every token of a text, computed in chunks of `chunk` rows.
pub(crate) fn logits(runner: &mut CpuRunner, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    adapted_logits(runner, tokens, chunk, None)
}

/// The same with an adapter.
pub(crate) fn adapted_logits(
    runner: &mut CpuRunner,
    tokens: &[u32],
    chunk: usize,
    adapter: Option<RowsAdapter>,
) -> Vec<Vec<f32>> {
    let page_bytes = runner.limits().kv_shape.page_bytes(PageFormat::F16);
    let pages = tokens.len().div_ceil(PAGE_TOKENS);
    runner.reserve_pages(pages * page_bytes, Rotation::None);
    runner.reserve_states(1);
    let mut all = Vec::new();
    for chunk in tokens.chunks(chunk) {
        let locations = (0..pages).map(|page| PageLocation { offset: page * page_bytes, format: PageFormat::F16 });
        let mut batch = Batch::default();
        batch.push(all.len(), chunk.iter().copied(), chunk.len(), locations, adapter);
        if runner.limits().state_bytes > 0 {
            batch.set_state(StateSlot(0), 0);
        }
        runner.submit(&batch).expect("a sound batch");
        runner.wait().expect("it runs");
        all.extend((0..chunk.len()).map(|i| runner.logits(i).to_vec()));
    }
    all
}

/// The largest difference to what is known of a prompt.
pub(crate) fn error(got: &[Vec<f32>], prompt: &Prompt) -> f32 {
    let of_row = |(row, want): &(usize, Vec<f32>)| {
        assert_eq!(got[*row].len(), want.len());
        got[*row].iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
    };
    prompt.rows.iter().map(of_row).fold(0.0, f32::max)
}

#[test]
fn logits_equal_those_of_transformers() {
    let mut failures = Vec::new();
    for folder in folders() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let gguf = Gguf::open(folder.join("model.gguf")).expect("a sound file");
        for prompt in prompts(&folder) {
            let model = match Model::load(&gguf, prompt.context, &mut |_| {}) {
                Ok(model) => Arc::new(model),
                Err(error) => {
                    failures.push(format!("{name}: {error}"));
                    break;
                }
            };
            for set in KernelSet::available() {
                // Whole, in parts and token by token on the set that is used here.
                for chunk in if set == KernelSet::best() { vec![64, 7, 1] } else { vec![16] } {
                    let mut runner = CpuRunner::new(model.clone(), Pool::new(2, set), 64);
                    let error = error(&logits(&mut runner, &prompt.tokens, chunk), &prompt);
                    println!("{name}, {} tokens by {chunk} on {}: {error}", prompt.tokens.len(), set.name());
                    // Not a number is no small error.
                    if !error.le(&TOLERANCE) {
                        let (set, len) = (set.name(), prompt.tokens.len());
                        failures.push(format!("{name} on {set}, {len} tokens by {chunk}: {error}"));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn experts_on_disk_give_the_same_logits() {
    let mut compared = 0;
    for folder in folders() {
        let gguf = Gguf::open(folder.join("model.gguf")).expect("a sound file");
        let file = tempfile::tempfile().expect("a file");
        let on_disk = Model::load_with_experts_in(Some(file.try_clone().unwrap()), &gguf, CONTEXT, &mut |_| {});
        let on_disk = on_disk.expect("a sound model");
        let size = file.metadata().expect("its size").len();
        assert_eq!(on_disk.expert_bytes() == 0, size == 0, "{}", folder.display());
        if size == 0 {
            continue;
        }
        assert!(size >= on_disk.expert_bytes() as u64 && on_disk.expert_bytes() < on_disk.weight_bytes());
        let in_memory = Model::load(&gguf, CONTEXT, &mut |_| {}).expect("a sound model");
        let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 256).collect();
        let [got, want] = [on_disk, in_memory].map(|model| {
            logits(&mut CpuRunner::new(Arc::new(model), Pool::new(2, KernelSet::best()), 64), &tokens, 16)
        });
        assert_eq!(got, want, "{}", folder.display());
        compared += 1;
    }
    assert!(compared >= 4, "{compared} models with experts");
}

/// Our own quantization of each without experts, to 8 bits: what matrices and activations lose, and nothing else.
#[test]
fn quantized_to_8_bits_logits_stay_close() {
    let folder = tempfile::tempdir().expect("a folder");
    for source in folders() {
        let name = source.file_name().unwrap().to_string_lossy().into_owned();
        let path = folder.path().join(format!("{name}.gguf"));
        let gguf = Gguf::open(source.join("model.gguf")).expect("a sound file");
        // Where the residual stream is rounded otherwise, other experts are chosen, and all that follows differs.
        if gguf.tensor("blk.1.ffn_gate_inp.weight").is_some() {
            continue;
        }
        let plan = Plan::new(&gguf, Recipe::Uniform(WeightType::Q8_0)).expect("it can be planned");
        let mut job = Job::begin(&plan, &path).expect("it can be written");
        while job.step().expect("all weights are numbers") {}
        job.finish().expect("it is finished");
        let gguf = Gguf::open(&path).expect("a sound file");
        for prompt in prompts(&source) {
            let model = Arc::new(Model::load(&gguf, prompt.context, &mut |_| {}).expect("a sound model"));
            let mut runner = CpuRunner::new(model, Pool::new(2, KernelSet::best()), 64);
            let error = relative_error(&logits(&mut runner, &prompt.tokens, 64), &prompt);
            println!("{name}, {} tokens: {error}", prompt.tokens.len());
            assert!(error.le(&0.15), "{name}, {} tokens: {error}", prompt.tokens.len());
        }
    }
}

/// The root mean square of the differences to what is known of a prompt, in terms of that of the logits.
fn relative_error(got: &[Vec<f32>], prompt: &Prompt) -> f32 {
    let (mut differences, mut squares) = (0f32, 0f32);
    for (row, want) in &prompt.rows {
        differences += got[*row].iter().zip(want).map(|(got, want)| (got - want).powi(2)).sum::<f32>();
        squares += want.iter().map(|want| want * want).sum::<f32>();
    }
    (differences / squares).sqrt()
}

#[test]
fn rounded_weights_stay_within_what_rounding_does() {
    let folders = folders();
    let quantized: Vec<_> = folders.iter().filter(|folder| folder.join("quantized.gguf").exists()).collect();
    assert!(!quantized.is_empty());
    for folder in quantized {
        let gguf = Gguf::open(folder.join("quantized.gguf")).expect("a sound file");
        let model = Arc::new(Model::load(&gguf, CONTEXT, &mut |_| {}).expect("a sound model"));
        let mut runner = CpuRunner::new(model, Pool::new(2, KernelSet::best()), 64);
        for prompt in prompts(folder) {
            // Activations are rounded to 8 bits where weights have few: llama.cpp, which does so too, is off by 0.34.
            let error = error(&logits(&mut runner, &prompt.tokens, 64), &prompt);
            println!("{}, {} tokens: {error}", folder.display(), prompt.tokens.len());
            assert!(error.le(&0.3), "{}: {error}", folder.display());
        }
    }
}
