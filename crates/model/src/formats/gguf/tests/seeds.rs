//! The fuzzer's seeds are files of our own writer, kept in the repository so that it starts from sound ones.

use std::path::PathBuf;

use super::super::Gguf;
use super::super::value::ValueType;
use super::super::write::{Draft, string};
use super::sample;
use ruvllm_kernels::WeightType;

fn seeds() -> [(&'static str, Draft); 4] {
    let mut aligned = Draft::new().u32("general.alignment", 64);
    aligned.version = 2;
    aligned.alignment = 64;
    let aligned = aligned.tensor("a", &[1], WeightType::F32, &[1; 4]).tensor("b", &[1], WeightType::F32, &[2; 4]);
    let tokens = Draft::new()
        .string("general.architecture", "lfm2")
        .strings("tokenizer.ggml.tokens", &[b"a", b"\xff", b"bc"])
        .array("lfm2.attention.head_count_kv", ValueType::I32, 2, &[0, 0, 0, 0, 2, 0, 0, 0])
        .entry("tokenizer.chat_template", ValueType::String, &string(b"{{ messages }}"));
    let mut every_type = Draft::new();
    for kind in WeightType::ALL {
        let bytes = vec![1; kind.row_bytes(256).unwrap()];
        every_type = every_type.tensor(kind.name(), &[256], kind, &bytes);
    }
    [("sample", sample()), ("aligned", aligned), ("tokens", tokens), ("every_type", every_type)]
}

#[test]
fn the_fuzzers_seeds_are_sound_and_up_to_date() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/gguf");
    for (name, draft) in seeds() {
        let path = folder.join(format!("{name}.gguf"));
        Gguf::parse(draft.bytes()).unwrap_or_else(|error| panic!("seed {name}: {error}"));
        if std::env::var_os("RUVLLM_WRITE_FUZZ_SEEDS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, draft.bytes()).unwrap();
        }
        let stored = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(stored == draft.bytes(), "{name} differs; run this test with RUVLLM_WRITE_FUZZ_SEEDS=1");
    }
}
