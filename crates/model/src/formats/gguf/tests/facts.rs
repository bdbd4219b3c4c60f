use super::super::Gguf;
use super::super::facts::{ModelFacts, PerLayer, WeightShare};
use super::super::value::ValueType;
use super::super::write::Draft;
use super::sample;
use ruvllm_kernels::WeightType;

fn facts(draft: Draft) -> ModelFacts {
    ModelFacts::of(&Gguf::parse(draft.bytes()).unwrap()).unwrap()
}

#[test]
fn facts_sum_up_parameters_and_weight_types() {
    let facts = facts(sample());
    assert_eq!(facts.architecture.as_deref(), Some("llama"));
    assert_eq!(facts.parameters, 96 + 5 + 12);
    assert_eq!(
        facts.weights,
        [
            WeightShare { kind: WeightType::Q8_0, tensors: 1, bytes: 102 },
            WeightShare { kind: WeightType::F16, tensors: 1, bytes: 24 },
            WeightShare { kind: WeightType::F32, tensors: 1, bytes: 20 },
        ]
    );
    assert_eq!((facts.layers, facts.context_length, facts.heads), (Some(2), None, None));
    assert_eq!(facts.vocabulary_size, Some(3), "counted from the tokens");
    assert_eq!(facts.file_bytes, sample().bytes().len() as u64);
}

#[test]
fn kv_heads_may_differ_per_layer_or_default_to_heads() {
    let model = Draft::new().string("general.architecture", "lfm2").u32("lfm2.attention.head_count", 4);
    assert_eq!(facts(model.clone()).kv_heads, Some(PerLayer::Same(4)));
    let elements: Vec<u8> = [0i32, 2].iter().flat_map(|count| count.to_le_bytes()).collect();
    let model = model.array("lfm2.attention.head_count_kv", ValueType::I32, 2, &elements);
    assert_eq!(facts(model).kv_heads, Some(PerLayer::Each(vec![0, 2])));
}

#[test]
fn a_fact_of_the_wrong_type_is_an_error_that_names_its_key() {
    let check = |draft: Draft, expected: &str| {
        let error = ModelFacts::of(&Gguf::parse(draft.bytes()).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(
        Draft::new().u32("general.architecture", 1),
        r#"metadata key "general.architecture" should be a string, but is u32"#,
    );
    check(
        Draft::new().string("general.architecture", "x").array("x.attention.head_count", ValueType::I8, 1, &[255]),
        r#"metadata key "x.attention.head_count" should be an array of counts, but its value -1 does not fit"#,
    );
}

#[test]
fn a_file_that_says_nothing_has_no_facts_but_its_size() {
    let facts = facts(Draft::new());
    assert_eq!((facts.architecture, facts.name, facts.license, facts.chat_template), (None, None, None, None));
    assert_eq!((facts.parameters, facts.weights.len(), facts.file_bytes), (0, 0, 24));
}
