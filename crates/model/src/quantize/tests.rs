//! Small files through the whole of it.

use std::fs;
use std::path::Path;

use ruvllm_kernels::{WeightType, dequantize_row, quantize_row};

use super::*;
use crate::formats::gguf::write::Draft;
use crate::formats::gguf::{Gguf, Value};

/// Floats between -1 and 1.
fn floats(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 12.9898).sin()).collect()
}

fn bytes(kind: WeightType, floats: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    quantize_row(kind, floats, &mut bytes).unwrap();
    bytes
}

/// A model of one layer, too small for anything but tests.
fn draft() -> Draft {
    Draft::new()
        .string("general.architecture", "llama")
        .u32("general.file_type", 1)
        .strings("tokenizer.ggml.tokens", &[b"a", b"\xff"])
        .tensor("token_embd.weight", &[256, 3], WeightType::F16, &bytes(WeightType::F16, &floats(768)))
        .tensor("output.weight", &[256, 3], WeightType::F32, &bytes(WeightType::F32, &floats(768)))
        .tensor("blk.0.attn_norm.weight", &[256], WeightType::F32, &bytes(WeightType::F32, &floats(256)))
        .tensor("blk.0.attn_q.weight", &[256, 2], WeightType::Q8_0, &bytes(WeightType::Q8_0, &floats(512)))
        .tensor("blk.0.attn_k.weight", &[96, 5], WeightType::Bf16, &bytes(WeightType::Bf16, &floats(480)))
        .tensor("blk.0.ffn_up.weight", &[50, 2, 3], WeightType::F32, &bytes(WeightType::F32, &floats(300)))
}

fn quantize(source: &Gguf, recipe: Recipe, output: &Path) -> Result<Report, JobError> {
    let plan = Plan::new(source, recipe).unwrap();
    let mut job = Job::begin(&plan, output)?;
    while job.step()? {}
    assert_eq!(job.done_bytes(), job.total_bytes());
    job.finish()
}

fn names_in(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_recipe_gives_a_file_as_planned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let source = Gguf::parse(draft().bytes()).unwrap();
    for recipe in Recipe::ALL {
        let plan = Plan::new(&source, recipe).unwrap();
        let report = quantize(&source, recipe, &path).unwrap();
        let written = Gguf::open(&path).unwrap();
        assert_eq!(written.file().len() as u64, plan.file_bytes);
        assert_eq!(report.file_bytes, plan.file_bytes);
        assert_eq!(report.types.iter().map(|of| of.weights).sum::<u64>(), plan.weights());
        assert_eq!(report.types.iter().map(|of| of.tensors).sum::<usize>(), source.tensors().len());
        assert_eq!(written.tensors().len(), source.tensors().len());
        for (planned, written) in plan.tensors.iter().zip(written.tensors()) {
            assert_eq!((planned.source.name, planned.source.dims), (written.name, written.dims));
            assert_eq!((planned.to, planned.bytes), (written.kind, written.bytes_len() as u64));
            let mut floats = [vec![0.0; written.element_count()], vec![0.0; written.element_count()]];
            dequantize_row(planned.source.kind, &planned.source.bytes(), &mut floats[0]);
            dequantize_row(written.kind, &written.bytes(), &mut floats[1]);
            let worst = floats[0].iter().zip(&floats[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 0.15, "{recipe}, {}: {worst}", written.name);
        }
    }
}

#[test]
fn metadata_is_copied_and_only_what_changes_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let source = Gguf::parse(draft().bytes()).unwrap();
    quantize(&source, Recipe::Q4KM, &path).unwrap();
    let written = Gguf::open(&path).unwrap();
    let keys: Vec<&str> = written.metadata().iter().map(|(key, _)| key).collect();
    let expected =
        ["general.architecture", "general.file_type", "tokenizer.ggml.tokens", "general.quantization_version"];
    assert_eq!(keys, expected);
    assert_eq!(written.metadata().get("general.file_type"), Some(Value::U32(15)));
    assert_eq!(written.metadata().get("general.quantization_version"), Some(Value::U32(2)));
    for key in ["general.architecture", "tokenizer.ggml.tokens"] {
        assert_eq!(written.metadata().get(key), source.metadata().get(key), "{key}");
    }
    quantize(&source, Recipe::Uniform(WeightType::F16), &path).unwrap();
    assert_eq!(Gguf::open(&path).unwrap().metadata().get("general.quantization_version"), None);
}

#[test]
fn what_is_of_the_right_type_already_is_copied_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let source = Gguf::parse(draft().bytes()).unwrap();
    let report = quantize(&source, Recipe::Uniform(WeightType::Q8_0), &path).unwrap();
    let written = Gguf::open(&path).unwrap();
    for name in ["blk.0.attn_q.weight", "blk.0.attn_norm.weight"] {
        assert_eq!(written.tensor(name).unwrap().bytes(), source.tensor(name).unwrap().bytes());
    }
    let error = |kind| report.types.iter().find(|of| of.kind == kind).unwrap().relative_rms_error();
    assert_eq!(error(WeightType::F32), 0.0);
    assert!((0.001..0.01).contains(&error(WeightType::Q8_0)));
}

#[test]
fn fallbacks_are_part_of_the_plan() {
    let source = Gguf::parse(draft().bytes()).unwrap();
    let plan = Plan::new(&source, Recipe::Q4KM).unwrap();
    let fallbacks: Vec<_> =
        plan.tensors.iter().filter_map(|tensor| Some((tensor.source.name, tensor.instead_of?, tensor.to))).collect();
    let expected = [
        ("blk.0.attn_k.weight", WeightType::Q4K, WeightType::Q5_0),
        ("blk.0.ffn_up.weight", WeightType::Q4K, WeightType::F16),
    ];
    assert_eq!(fallbacks, expected);
    let quantized: Vec<_> = plan.tensors.iter().filter(|tensor| tensor.was_quantized()).collect();
    assert_eq!(quantized.len(), 1);
}

#[test]
fn weights_that_are_no_numbers_are_named_and_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let mut weights = floats(128);
    weights[64 + 3] = f32::NAN;
    let stored: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    for (name, dims) in [("blk.0.attn_q.weight", &[64u64, 2][..]), ("blk.0.attn_norm.weight", &[128])] {
        let source = Draft::new().tensor(name, dims, WeightType::F32, &stored);
        let error =
            quantize(&Gguf::parse(source.bytes()).unwrap(), Recipe::Uniform(WeightType::Q4_0), &path).unwrap_err();
        let (row, element) = if dims.len() == 2 { (1, 3) } else { (0, 67) };
        let expected = format!(
            "tensor {name:?}, row {row}: element {element} is NaN, not a finite number; the source is damaged: get it again"
        );
        assert_eq!(error.to_string(), expected);
        assert!(names_in(folder.path()).is_empty());
    }
}

#[test]
fn weights_beyond_a_types_range_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let stored: Vec<u8> = [1.0f32, 1e6].iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let source = Draft::new().tensor("output.weight", &[2, 1], WeightType::F32, &stored);
    let source = Gguf::parse(source.bytes()).unwrap();
    let convert = |kind| quantize(&source, Recipe::Uniform(kind), &folder.path().join("out.gguf"));
    let expected = "tensor \"output.weight\", row 0: element 1 is 1000000; F16 reaches 6.5504e4; \
                    choose a type with a wider range, such as bf16";
    assert_eq!(convert(WeightType::F16).unwrap_err().to_string(), expected);
    convert(WeightType::Bf16).unwrap();
}

#[test]
fn a_job_that_is_given_up_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let source = Gguf::parse(draft().bytes()).unwrap();
    let plan = Plan::new(&source, Recipe::Q4KM).unwrap();
    let mut job = Job::begin(&plan, &folder.path().join("out.gguf")).unwrap();
    assert!(job.step().unwrap() && job.step().unwrap());
    assert_eq!(names_in(folder.path()).len(), 1);
    drop(job);
    assert!(names_in(folder.path()).is_empty());
}
