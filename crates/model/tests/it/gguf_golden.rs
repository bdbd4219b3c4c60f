//! The default model's file, read by us, against what the Python package `gguf` 0.19.0 says about it.

use ruvllm_kernels::WeightType;
use ruvllm_model::formats::gguf::facts::{ModelFacts, PerLayer, WeightShare};
use ruvllm_model::formats::gguf::{Array, Gguf, Value};
use ruvllm_store::{Store, default_home};

/// Each line: name, dimensions, type, start in the file, size.
const TENSORS: &str = include_str!("../gguf_smollm2_tensors.txt");

/// The default model, fetched on first use into the store that all tests share.
fn open_model() -> Gguf {
    let store = Store::open(&default_home().unwrap());
    Gguf::open(store.ensure("smollm2", &mut |_| {}).unwrap().path).unwrap()
}

/// FNV-1a: enough to compare long lists with another program's reading of them.
fn fingerprint<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    parts.flatten().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn scalars_are_those_of_the_reference() {
    let file = open_model();
    let expected = [
        ("general.architecture", Value::String("llama")),
        ("general.type", Value::String("model")),
        ("general.name", Value::String("Smollm2 135M 8k Lc100K Mix1 Ep2")),
        ("general.organization", Value::String("HuggingFaceTB")),
        ("general.finetune", Value::String("8k-lc100k-mix1-ep2")),
        ("general.basename", Value::String("smollm2")),
        ("general.size_label", Value::String("135M")),
        ("general.license", Value::String("apache-2.0")),
        ("llama.block_count", Value::U32(30)),
        ("llama.context_length", Value::U32(8192)),
        ("llama.embedding_length", Value::U32(576)),
        ("llama.feed_forward_length", Value::U32(1536)),
        ("llama.attention.head_count", Value::U32(9)),
        ("llama.attention.head_count_kv", Value::U32(3)),
        ("llama.rope.freq_base", Value::F32(100_000.0)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("general.file_type", Value::U32(3)),
        ("llama.vocab_size", Value::U32(49152)),
        ("llama.rope.dimension_count", Value::U32(64)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.ggml.model", Value::String("gpt2")),
        ("tokenizer.ggml.pre", Value::String("smollm")),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
        ("tokenizer.ggml.padding_token_id", Value::U32(2)),
        ("general.quantization_version", Value::U32(2)),
    ];
    let own_tests = ["tokenizer.chat_template"];
    let scalars: Vec<_> = file
        .metadata()
        .iter()
        .filter(|(key, value)| !matches!(value, Value::Array(_)) && !own_tests.contains(key))
        .collect();
    assert_eq!(scalars, expected);
    assert_eq!((file.version(), file.metadata().len()), (3, 33));
    let template = file.metadata().required::<&str>("tokenizer.chat_template").unwrap();
    assert_eq!((template.len(), fingerprint([template.as_bytes()].into_iter())), (368, 0x45ec_583d_4d25_bc3a));
}

#[test]
fn arrays_are_those_of_the_reference() {
    let file = open_model();
    let array = |key| file.metadata().required::<Array<'_>>(key).unwrap();
    let strings = |key| array(key).strings().unwrap().collect::<Result<Vec<&str>, _>>().unwrap();
    let lines = |list: &[&str]| fingerprint(list.iter().flat_map(|line| [line.as_bytes(), b"\n"]));

    assert_eq!(strings("general.languages"), ["en"]);
    let tokens = strings("tokenizer.ggml.tokens");
    assert_eq!(tokens[..4], ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]);
    assert_eq!((tokens.len(), tokens.last(), lines(&tokens)), (49152, Some(&"ectable"), 0x96c1_03f4_8515_3e62));
    let merges = strings("tokenizer.ggml.merges");
    assert_eq!((merges.len(), merges[0], lines(&merges)), (48900, "Ġ t", 0x3074_7fed_4c76_106b));
    let types: Vec<i32> = array("tokenizer.ggml.token_type").numbers().unwrap().collect();
    assert_eq!((types.len(), types.iter().filter(|kind| **kind == 3).count()), (49152, 17));
    let type_bytes: Vec<[u8; 4]> = types.iter().map(|kind| kind.to_le_bytes()).collect();
    assert_eq!(fingerprint(type_bytes.iter().map(|bytes| &bytes[..])), 0xf8a3_56c4_c07e_6a27);
}

#[test]
fn tensors_are_those_of_the_reference() {
    let file = open_model();
    let ours: Vec<String> = file
        .tensors()
        .map(|tensor| {
            let dims: Vec<String> = tensor.dims.iter().map(usize::to_string).collect();
            let (start, size) = (tensor.range.start, tensor.bytes_len());
            format!("{} {} {} {start} {size}", tensor.name, dims.join("x"), tensor.kind)
        })
        .collect();
    assert_eq!(ours, TENSORS.lines().collect::<Vec<_>>());
    let contents = |name| fingerprint([&*file.tensor(name).unwrap().bytes()].into_iter());
    assert_eq!(contents("output_norm.weight"), 0xea81_4bed_6299_e304);
    assert_eq!(contents("blk.29.attn_v.weight"), 0x30a1_4006_5315_15f1);
}

#[test]
fn facts_are_those_of_the_reference() {
    let facts = ModelFacts::of(&open_model()).unwrap();
    assert_eq!(facts.architecture.as_deref(), Some("llama"));
    assert_eq!(facts.name.as_deref(), Some("Smollm2 135M 8k Lc100K Mix1 Ep2"));
    assert_eq!(facts.license.as_deref(), Some("apache-2.0"));
    assert_eq!(facts.parameters, 134_515_008);
    assert_eq!(
        facts.weights,
        [
            WeightShare { kind: WeightType::Q4_1, tensors: 210, bytes: 66_355_200 },
            WeightShare { kind: WeightType::Q8_0, tensors: 1, bytes: 30_081_024 },
            WeightShare { kind: WeightType::F32, tensors: 61, bytes: 140_544 },
        ]
    );
    assert_eq!((facts.context_length, facts.embedding_length, facts.layers), (Some(8192), Some(576), Some(30)));
    assert_eq!((facts.heads, facts.kv_heads), (Some(PerLayer::Same(9)), Some(PerLayer::Same(3))));
    assert_eq!((facts.vocabulary_size, facts.file_bytes), (Some(49152), 98_362_432));
    assert!(facts.chat_template.unwrap().starts_with("{% for message in messages %}"));
}
