//! Generating models on candle: the logits that transformers computes for a tiny model of each architecture
//! (`tests/golden/architectures.py`), and files that are not what they claim.

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_backends::Candle;
use ruvllm_kernels::WeightType;
use ruvllm_model::formats::gguf::write::{Header, Writer};
use ruvllm_model::formats::gguf::{Gguf, Tensor, Value as GgufValue};
use ruvllm_runner::{
    Batch, BatchError, PAGE_TOKENS, PageFormat, PageLocation, Rotation, Runner, RunnerError, StateSlot,
};
use ruvllm_runtime::{Backend, LoadSizes};
use serde_json::Value;

const CONTEXT: usize = 256;
const TOLERANCE: f32 = 1e-3;

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/candle").join(name).join("model.gguf")
}

fn runner(gguf: &Gguf) -> Box<dyn Runner> {
    let mut loaded = 0;
    let model = Candle.open(Path::new(""), gguf).expect("a sound file");
    let sizes = LoadSizes { context: CONTEXT, sequences: 2, rows_max: 64 };
    let mut runner = model.load(gguf, sizes, &mut |bytes| loaded = bytes).expect("a sound file");
    assert_eq!(loaded, gguf.tensors().map(|tensor| tensor.bytes_len() as u64).sum::<u64>(), "progress");
    runner.reserve_pages(CONTEXT / PAGE_TOKENS * page_bytes(&*runner) * 2, Rotation::None);
    runner.reserve_states(2);
    runner
}

fn page_bytes(runner: &dyn Runner) -> usize {
    runner.limits().kv_shape.page_bytes(PageFormat::F16)
}

/// Adds rows of the sequence in a slot, all of which give logits.
fn push(batch: &mut Batch, runner: &dyn Runner, slot: u32, start: usize, tokens: &[u32]) {
    let (pages, bytes) = (CONTEXT / PAGE_TOKENS, page_bytes(runner));
    let first = slot as usize * pages;
    let locations = (first..first + pages).map(|page| PageLocation { offset: page * bytes, format: PageFormat::F16 });
    batch.push(start, tokens.iter().copied(), tokens.len(), locations, None);
    batch.set_state(StateSlot(slot), 0);
}

/// The logits after every token of a text, computed in chunks of `chunk` rows.
fn logits(runner: &mut dyn Runner, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for chunk in tokens.chunks(chunk) {
        let mut batch = Batch::default();
        push(&mut batch, runner, 0, all.len(), chunk);
        runner.submit(&batch).expect("a sound batch");
        runner.wait().expect("it runs");
        all.extend((0..chunk.len()).map(|i| runner.logits(i).to_vec()));
    }
    all
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn logits_equal_those_of_transformers() {
    for name in Candle.architectures() {
        let gguf = Gguf::open(model(name)).expect("a sound file");
        let reference = fs::read(model(name).with_file_name("logits.json")).expect("its logits");
        let reference: Value = serde_json::from_slice(&reference).expect("JSON");
        let mut runner = runner(&gguf);
        for prompt in reference["prompts"].as_array().expect("prompts") {
            let tokens: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).expect("token ids");
            let got = logits(&mut *runner, &tokens, 64);
            for (row, expected) in prompt["rows"].as_object().expect("rows") {
                let expected: Vec<f32> = serde_json::from_value(expected.clone()).expect("logits");
                let error = largest_difference(&got[row.parse::<usize>().expect("a row")], &expected);
                assert!(error.le(&TOLERANCE), "{name}, row {row} of {}: {error}", tokens.len());
            }
        }
    }
}

/// A prompt in passes of several rows, of which only the last gives logits, and two sequences in one batch.
#[test]
fn passes_and_company_make_no_difference() {
    for name in Candle.architectures() {
        let gguf = Gguf::open(model(name)).expect("a sound file");
        let mut runner = runner(&gguf);
        let tokens: Vec<u32> = (0..90).map(|i| i * 37 % 256).collect();
        let (one, other) = (&tokens[..50], &tokens[20..]);
        let alone = [one, other].map(|tokens| logits(&mut *runner, tokens, 64));
        for (start, end) in [(0, 20), (20, 49), (49, 50)] {
            let mut batch = Batch::default();
            push(&mut batch, &*runner, 0, start, &one[start..end]);
            push(&mut batch, &*runner, 1, start, &other[start..end]);
            batch.set_logit_rows([end - start - 1, 2 * (end - start) - 1]);
            runner.submit(&batch).expect("a sound batch");
            for (i, alone) in alone.iter().enumerate() {
                let error = largest_difference(runner.logits(i), &alone[end - 1]);
                assert!(error.le(&TOLERANCE), "{name}, sequence {i} at {end}: {error}");
            }
        }
    }
}

/// Rows go on where their slot ends, or they are refused before anything runs.
#[test]
fn a_slot_holds_one_sequence_until_it_is_emptied() {
    let gguf = Gguf::open(model("phi2")).expect("a sound file");
    let mut runner = runner(&gguf);
    let run = |runner: &mut Box<dyn Runner>, start: usize, tokens: &[u32]| {
        let mut batch = Batch::default();
        push(&mut batch, &**runner, 0, start, tokens);
        runner.submit(&batch)
    };
    let elsewhere = |start| Err(RunnerError::Batch(BatchError::StateElsewhere { slot: StateSlot(0), start }));
    assert_eq!(run(&mut runner, 3, &[1]), elsewhere(3));
    assert_eq!(run(&mut runner, 0, &[1, 2, 3]), Ok(()));
    assert_eq!(run(&mut runner, 2, &[1]), elsewhere(2));
    assert_eq!(run(&mut runner, 3, &[4]), Ok(()));
    let expected = runner.logits(0).to_vec();
    runner.discard_state(StateSlot(0));
    assert_eq!(run(&mut runner, 4, &[5]), elsewhere(4));
    assert_eq!(run(&mut runner, 0, &[1, 2, 3, 4]), Ok(()));
    assert!(largest_difference(runner.logits(3), &expected) <= TOLERANCE);
    assert_eq!(run(&mut runner, 0, &[256]), Err(RunnerError::Batch(BatchError::OutOfRange)));
}

/// A copy of a file with other metadata, and tensors that `change` may alter or leave out.
fn changed(
    name: &str,
    set: impl FnOnce(&mut Header),
    change: impl Fn(&Tensor<'_>) -> Option<(String, Vec<usize>, WeightType)>,
) -> Gguf {
    let gguf = Gguf::open(model(name)).expect("a sound file");
    let mut header = Header::copying(gguf.metadata());
    set(&mut header);
    let tensors: Vec<_> = gguf.tensors().filter_map(|tensor| change(&tensor)).collect();
    tensors.iter().for_each(|(name, dims, kind)| header.add_tensor(name, dims, *kind));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("changed.gguf");
    let mut writer = Writer::create(&path, &header).expect("it can be written");
    for (_, dims, kind) in &tensors {
        let rows: usize = dims[1..].iter().product();
        writer.write(&vec![0; kind.row_bytes(dims[0]).expect("whole blocks") * rows]).expect("it can be written");
    }
    writer.finish().expect("it can be written");
    Gguf::open(&path).expect("a sound file")
}

fn same(tensor: &Tensor<'_>) -> Option<(String, Vec<usize>, WeightType)> {
    Some((tensor.name.to_owned(), tensor.dims.to_vec(), tensor.kind))
}

fn refusal(gguf: &Gguf) -> String {
    Candle.open(Path::new(""), gguf).expect_err("it is not what it claims").to_string()
}

#[test]
fn metadata_that_candle_would_fail_on_or_not_look_at_is_refused_by_its_key() {
    let count = GgufValue::U32;
    for (name, key, value) in [
        ("phi2", "block_count", count(0)),
        ("phi2", "block_count", count(u32::MAX)),
        ("phi2", "attention.head_count", count(0)),
        ("phi2", "attention.head_count_kv", count(2)),
        ("phi2", "rope.dimension_count", count(7)),
        ("phi2", "rope.dimension_count", count(18)),
        ("phi2", "rope.freq_base", GgufValue::F32(500.0)),
        ("phi2", "attention.layer_norm_epsilon", GgufValue::F32(f32::NAN)),
        ("phi2", "context_length", count(0)),
        ("glm4", "attention.head_count_kv", count(3)),
        ("glm4", "rope.dimension_count", count(32)),
        ("glm4", "rope.scaling.type", GgufValue::String("yarn")),
        ("glm4", "rope.freq_base", GgufValue::F32(-1.0)),
        ("glm4", "nextn_predict_layers", count(1)),
        ("llama", "attention.key_length", count(32)),
        ("llama", "rope.scaling.factor", GgufValue::F32(4.0)),
        ("llama", "expert_count", count(8)),
        ("llama", "attention.sliding_window", count(64)),
    ] {
        let key = format!("{name}.{key}");
        let message = refusal(&changed(name, |header| header.set(&key, value), same));
        assert!(message.contains(&key), "{key}: {message}");
    }
}

#[test]
fn tensors_that_are_missing_left_over_or_of_another_shape_are_refused_by_name() {
    let without = |name: &'static str, left_out: &'static str| {
        changed(name, |_| {}, |tensor| same(tensor).filter(|_| tensor.name != left_out))
    };
    for (name, tensor) in
        [("phi2", "output.bias"), ("glm4", "blk.1.post_ffw_norm.weight"), ("llama", "blk.0.attn_v.weight")]
    {
        let message = refusal(&without(name, tensor));
        assert!(message.contains(tensor) && message.contains("missing"), "{message}");
    }
    // Of the three that phi2 can have in place of one.
    let message = refusal(&without("phi2", "blk.0.attn_k.weight"));
    assert!(message.contains("blk.0.attn_qkv.weight"), "{message}");
    let with = |name: &'static str, change: fn(&mut (String, Vec<usize>, WeightType))| {
        changed(
            name,
            |_| {},
            |tensor| {
                same(tensor).map(|mut one| {
                    change(&mut one);
                    one
                })
            },
        )
    };
    let message = refusal(&with("glm4", |one| one.1[0] += usize::from(one.0 == "output_norm.weight")));
    assert!(message.contains("output_norm.weight") && message.contains("65"), "{message}");
    let message = refusal(&with("llama", |one| {
        if one.0 == "blk.0.ffn_gate.weight" {
            one.2 = WeightType::Iq4Nl;
        }
    }));
    assert!(message.contains("blk.0.ffn_gate.weight") && message.contains("IQ4_NL"), "{message}");
    let message = refusal(&with("phi2", |one| {
        if one.0 == "blk.1.attn_v.weight" {
            one.2 = WeightType::Q8_0;
        }
    }));
    assert!(message.contains("blk.1.attn_v.weight") && message.contains("Q8_0"), "{message}");
    let message = refusal(&with("llama", |one| {
        if one.0 == "output.weight" {
            one.0 = "rope_freqs.weight".to_owned();
        }
    }));
    assert!(message.contains("rope_freqs.weight"), "{message}");
}
