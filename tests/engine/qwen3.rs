//! Qwen3, on a tiny model with random weights: the logits that transformers computes for it (`tests/golden/qwen3.py`).

use std::path::Path;

use ruvllm_kernels::{KernelSet, Pool};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::{CpuRunner, Model};
use ruvllm_runner::{Batch, PAGE_TOKENS, PageFormat, PageLocation, Rotation, Runner};
use serde_json::Value;

/// Logits after every token of a text, computed in chunks of `rows_max` rows.
fn logits(runner: &mut CpuRunner, tokens: &[u32]) -> Vec<Vec<f32>> {
    let page_bytes = runner.limits().kv_shape.page_bytes(PageFormat::F16);
    let pages = tokens.len().div_ceil(PAGE_TOKENS);
    runner.reserve_pages(pages * page_bytes, Rotation::None);
    let mut all = Vec::new();
    for chunk in tokens.chunks(runner.limits().rows_max) {
        let locations = (0..pages).map(|page| PageLocation { offset: page * page_bytes, format: PageFormat::F16 });
        let mut batch = Batch::default();
        batch.push(all.len(), chunk.iter().copied(), chunk.len(), locations, None);
        runner.submit(&batch).expect("a sound batch");
        runner.wait().expect("it runs");
        all.extend((0..chunk.len()).map(|i| runner.logits(i).to_vec()));
    }
    all
}

#[test]
fn logits_equal_those_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let reference: Value = serde_json::from_slice(&std::fs::read(folder.join("qwen3.json")).unwrap()).unwrap();
    let gguf = Gguf::open(folder.join("qwen3.gguf")).expect("a sound file");
    let model = std::sync::Arc::new(Model::load(&gguf, 256, &mut |_| {}).expect("a sound model"));
    for set in KernelSet::available() {
        let mut runner = CpuRunner::new(model.clone(), Pool::new(2, set), 16);
        for prompt in reference["prompts"].as_array().expect("prompts") {
            let tokens: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).expect("token ids");
            let got = logits(&mut runner, &tokens);
            for (row, want) in prompt["rows"].as_object().expect("rows") {
                let want: Vec<f32> = serde_json::from_value(want.clone()).expect("logits");
                let got = &got[row.parse::<usize>().expect("a row")];
                assert_eq!(got.len(), want.len());
                for (token, (got, want)) in got.iter().zip(&want).enumerate() {
                    // Keys and values are rounded to half floats.
                    assert!((got - want).abs() < 0.01, "{} row {row} token {token}: {got} for {want}", set.name());
                }
            }
        }
    }
}
