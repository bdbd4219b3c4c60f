//! Quantized files are sound for others and still good models.

use std::fs;
use std::path::Path;

use crate::support::smollm2;
use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value};
use ruvllm_kernels::{WeightType, dequantize_row};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::quantize::{Job, Plan, Recipe};
use ruvllm_runtime::Engine;

fn quantize(source: &Path, recipe: Recipe, output: &Path) {
    let source = Gguf::open(source).expect("the source is sound");
    let plan = Plan::new(&source, recipe).expect("it can be planned");
    let mut job = Job::begin(&plan, output).expect("it can be written");
    while job.step().expect("all weights are numbers") {}
    job.finish().expect("it is finished");
}

fn perplexity(path: &Path) -> f64 {
    // Three chunks of 256 tokens: enough to tell a good model from a damaged one.
    let text = &include_str!("../data/essays.txt")[..4000];
    let engine = Engine::builder(path).context(Some(256)).build().expect("the model loads");
    engine.perplexity(text, 256, |_, _, _| {}).expect("the text is long enough").value
}

/// The source has 4 bits already, so this is what the second loss costs. RUVLLM_TEST_LARGE=1 has a coarser format, too.
#[test]
fn the_default_model_stays_a_good_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = perplexity(&smollm2());
    let mut formats = vec![("q8_0", 1.01), ("q4_k", 1.08)];
    if std::env::var_os("RUVLLM_TEST_LARGE").is_some() {
        formats.push(("q4_0", 1.25));
    }
    for (name, worse_max) in formats {
        let path = folder.path().join(format!("{name}.gguf"));
        quantize(&smollm2(), name.parse().expect("a recipe"), &path);
        let quantized = perplexity(&path);
        println!("{name}: {quantized:.3}, source {source:.3}, {:+.2} %", (quantized / source - 1.0) * 100.0);
        assert!(quantized < source * worse_max, "{name}: {quantized}, the source {source}");
        assert!(quantized > source * 0.97, "{name}: {quantized} is better than its source {source}");
    }
}

/// Candle reads the file with a reader and dequantizers of its own.
#[test]
fn candle_reads_the_same_from_a_quantized_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("q4_k_m.gguf");
    quantize(&smollm2(), Recipe::Q4KM, &path);
    let ours = Gguf::open(&path).expect("it is sound");
    let mut file = fs::File::open(&path).expect("it opens");
    let candles = Content::read(&mut file).expect("candle reads it");
    assert_eq!(candles.metadata.len(), ours.metadata().len());
    assert!(matches!(candles.metadata["general.file_type"], Value::U32(15)));
    assert_eq!(candles.tensor_infos.len(), ours.tensors().len());
    let mut kinds = Vec::new();
    for tensor in ours.tensors() {
        let theirs = candles.tensor(&mut file, tensor.name, &Device::Cpu).expect("it is there");
        let dims: Vec<usize> = tensor.dims.iter().rev().copied().collect();
        assert_eq!(theirs.shape().dims(), dims);
        assert_eq!(theirs.dtype().type_size(), tensor.kind.block_bytes());
        kinds.push(tensor.kind);
        // The first of each type by value; the others are as long as they should be.
        if kinds.iter().filter(|kind| **kind == tensor.kind).count() > 1 {
            continue;
        }
        let theirs = theirs.dequantize(&Device::Cpu).and_then(|tensor| tensor.flatten_all()?.to_vec1::<f32>());
        let mut floats = vec![0f32; tensor.element_count()];
        dequantize_row(tensor.kind, &tensor.bytes(), &mut floats);
        let largest = floats.iter().fold(0f32, |a, b| a.max(b.abs()));
        for (ours, theirs) in floats.iter().zip(theirs.expect("candle dequantizes it")) {
            assert!((ours - theirs).abs() <= largest * 1e-6, "{}: {ours}, candle {theirs}", tensor.name);
        }
    }
    for kind in [WeightType::F32, WeightType::Q5_0, WeightType::Q8_0, WeightType::Q4K, WeightType::Q6K] {
        assert!(kinds.contains(&kind), "{kind} is in the mixture");
    }
}
