//! Files that are sound GGUF but no sound model, and a tiny one that is.

use ruvllm_kernels::WeightType;

use super::*;
use crate::formats::gguf::ValueType;
use crate::formats::gguf::write::Draft;

/// What to change in a tiny model: metadata by key, tensors by name.
#[derive(Default)]
struct Change {
    entry: Option<(&'static str, u32)>,
    architecture: Option<&'static str>,
    scaling: Option<&'static str>,
    leave_out: Option<&'static str>,
    reshape: Option<&'static str>,
    add: Option<&'static str>,
    not_finite: Option<&'static str>,
}

/// One layer of 32 numbers with 2 heads, in F32 and Q4_0.
fn tiny(change: &Change) -> Gguf {
    let architecture = change.architecture.unwrap_or("llama");
    let mut draft = Draft::new().string("general.architecture", architecture);
    let mut entries = vec![
        ("block_count", 1),
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", 128),
    ];
    if let Some((key, value)) = change.entry {
        entries.retain(|(name, _)| *name != key);
        entries.push((key, value));
    }
    for (key, value) in entries {
        draft = draft.u32(&format!("{architecture}.{key}"), value);
    }
    let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
    draft = draft.entry(&epsilon, ValueType::F32, &1e-5f32.to_le_bytes());
    if let Some(scaling) = change.scaling {
        draft = draft.string(&format!("{architecture}.rope.scaling.type"), scaling);
    }
    let mut tensors: Vec<(&str, Vec<u64>)> = vec![
        ("token_embd.weight", vec![32, 40]),
        ("output_norm.weight", vec![32]),
        ("blk.0.attn_norm.weight", vec![32]),
        ("blk.0.attn_q.weight", vec![32, 32]),
        ("blk.0.attn_k.weight", vec![32, 16]),
        ("blk.0.attn_v.weight", vec![32, 16]),
        ("blk.0.attn_output.weight", vec![32, 32]),
        ("blk.0.ffn_norm.weight", vec![32]),
        ("blk.0.ffn_gate.weight", vec![32, 64]),
        ("blk.0.ffn_up.weight", vec![32, 64]),
        ("blk.0.ffn_down.weight", vec![64, 32]),
    ];
    if architecture == "qwen3" {
        tensors.extend([("blk.0.attn_q_norm.weight", vec![16]), ("blk.0.attn_k_norm.weight", vec![16])]);
    }
    tensors.retain(|(name, _)| Some(*name) != change.leave_out);
    tensors.extend(change.add.map(|name| (name, vec![32])));
    for (name, mut dims) in tensors {
        if Some(name) == change.reshape {
            dims.reverse();
            dims[0] = 96;
        }
        let kind = if dims.len() == 1 { WeightType::F32 } else { WeightType::Q4_0 };
        let rows: u64 = dims[1..].iter().product();
        let bytes = kind.row_bytes(dims[0] as usize).unwrap() * rows as usize;
        let fill = if change.not_finite == Some(name) { 0xff } else { 0x11 };
        draft = draft.tensor(name, &dims, kind, &vec![fill; bytes]);
    }
    Gguf::parse(draft.bytes()).expect("a sound file")
}

fn check(change: Change, parts: &[&str]) {
    let message = Model::load(&tiny(&change), 64, &mut |_| {}).expect_err("no sound model").to_string();
    parts.iter().for_each(|part| assert!(message.contains(part), "{part}: {message}"));
}

#[test]
fn a_tiny_model_loads() {
    for architecture in ["llama", "qwen2", "qwen3", "smollm3", "granite", "mistral3"] {
        let change = Change { architecture: Some(architecture), ..Change::default() };
        let mut loaded = 0;
        let model = Model::load(&tiny(&change), 64, &mut |bytes| loaded = bytes).expect("it loads");
        assert_eq!((model.config().kv_shape().heads.dim, model.config().vocabulary, model.context()), (16, 40, 64));
        assert!(loaded > 0 && model.weight_bytes() > 0);
    }
}

#[test]
fn what_is_missing_or_left_over_is_named() {
    check(Change { leave_out: Some("blk.0.ffn_up.weight"), ..Change::default() }, &["blk.0.ffn_up.weight", "missing"]);
    check(Change { leave_out: Some("token_embd.weight"), ..Change::default() }, &["token_embd.weight"]);
    let qwen3 = Change { architecture: Some("qwen3"), ..Change::default() };
    check(Change { leave_out: Some("blk.0.attn_k_norm.weight"), ..qwen3 }, &["blk.0.attn_k_norm.weight", "missing"]);
    check(Change { add: Some("blk.0.attn_q_norm.weight"), ..Change::default() }, &["attn_q_norm", "not part"]);
    check(Change { add: Some("blk.0.attn_q.bias"), ..Change::default() }, &["blk.0.attn_k.bias"]);
    check(Change { reshape: Some("blk.0.attn_v.weight"), ..Change::default() }, &["attn_v", "[96, 32]", "[32, 16]"]);
    for name in ["blk.0.ffn_down.weight", "blk.0.attn_norm.weight"] {
        check(Change { not_finite: Some(name), ..Change::default() }, &[name, "number"]);
    }
}

#[test]
fn values_that_cannot_be_are_refused_by_key() {
    let entry = |key, value| Change { entry: Some((key, value)), ..Change::default() };
    check(Change { architecture: Some("mamba"), ..Change::default() }, &["mamba", "llama"]);
    check(Change { scaling: Some("dynamic"), ..Change::default() }, &["rope.scaling.type", "dynamic", "yarn"]);
    check(Change { scaling: Some("yarn"), ..Change::default() }, &["rope.scaling.original_context_length"]);
    check(entry("block_count", 0), &["llama.block_count", "at least 1"]);
    check(entry("block_count", 2), &["blk.1."]);
    check(entry("block_count", u32::MAX), &["llama.block_count", "more than the file has tensors"]);
    check(entry("attention.head_count", 0), &["attention.head_count"]);
    check(entry("attention.head_count_kv", 3), &["attention.head_count_kv", "divide"]);
    check(entry("attention.head_count", 3), &["llama.attention.key_length", "multiple of 16"]);
    check(entry("attention.key_length", 528), &["at most 512"]);
    check(entry("attention.value_length", 32), &["value_length"]);
    check(entry("rope.dimension_count", 18), &["rope.dimension_count"]);
    check(entry("expert_count", 8), &["expert_count", "experts"]);
    check(entry("context_length", 32), &["64", "32"]);
    let entry_of = |architecture, key, value| Change { architecture: Some(architecture), ..entry(key, value) };
    check(entry_of("gemma2", "attention.sliding_window", 0), &["gemma2.attention.sliding_window", "at least 1"]);
    check(entry_of("gpt-oss", "attention.sliding_window", 0), &["gpt-oss.attention.sliding_window", "at least 1"]);
    check(entry_of("gemma3", "attention.sliding_window_pattern", 0), &["sliding_window_pattern", "at least 1"]);
    check(entry_of("qwen3moe", "expert_count", 0), &["qwen3moe.expert_count", "at least 1"]);
    check(entry_of("qwen3moe", "expert_count", 1 << 20), &["qwen3moe.expert_used_count"]);
}
