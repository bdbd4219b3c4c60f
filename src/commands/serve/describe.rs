//! What a model's file says, for `/v1/models`, `/api/show` and `/api/tags`.

use std::path::Path;

use anyhow::Result;
use ruvllm_backends::{EncoderFacts, Purpose, is_encoder};
use ruvllm_model::formats::gguf::Value as GgufValue;
use ruvllm_model::formats::gguf::facts::ModelFacts;
use ruvllm_server::models::{ModelDescription, RunnerKind};
use ruvllm_text::ReasoningFormat;
use serde_json::{Map, Value, json};

/// Key of the template, which is shown by itself.
const TEMPLATE_KEY: &str = "tokenizer.chat_template";
/// Longer texts are left out: nobody looks for them there.
const TEXT_BYTES_MAX: usize = 4096;

/// Names of `general.file_type`, by number; `None` where llama.cpp has removed a type.
const FILE_TYPES: [(u64, &str); 26] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (30, "IQ4_XS"),
    (32, "BF16"),
];

pub fn describe(file: &Path) -> Result<ModelDescription> {
    if is_encoder(file) { describe_encoder(file) } else { describe_gguf(file) }
}

fn describe_gguf(file: &Path) -> Result<ModelDescription> {
    let gguf = ruvllm_model::open(file)?;
    let facts = ModelFacts::of(&gguf)?;
    let file_type = gguf.metadata().optional::<u64>("general.file_type").ok().flatten();
    let named = FILE_TYPES.iter().find(|(number, _)| Some(*number) == file_type).map(|(_, name)| (*name).to_owned());
    let quantization = named.or_else(|| facts.weights.first().map(|share| share.kind.to_string()));
    let metadata = gguf.metadata().iter().filter(|(key, _)| *key != TEMPLATE_KEY);
    Ok(ModelDescription {
        format: if ruvllm_model::folder_of(file).is_some() { "safetensors" } else { "gguf" },
        architecture: facts.architecture.unwrap_or_default(),
        parameters: facts.parameters,
        quantization: quantization.unwrap_or_default(),
        context: facts.context_length,
        license: facts.license,
        reasons: facts.chat_template.as_deref().is_some_and(ReasoningFormat::is_in_template),
        chat_template: facts.chat_template,
        kind: RunnerKind::Generator,
        metadata: metadata.map(|(key, value)| (key.to_owned(), to_json(value))).collect(),
    })
}

fn describe_encoder(file: &Path) -> Result<ModelDescription> {
    let facts = EncoderFacts::of(file)?;
    let name = facts.architecture;
    let numbers = [
        ("block_count", facts.layers),
        ("context_length", facts.context),
        ("embedding_length", facts.dimensions),
        ("attention.head_count", facts.heads),
        ("vocab_size", facts.vocabulary),
    ];
    let metadata: Map<String, Value> =
        numbers.into_iter().map(|(key, number)| (format!("{name}.{key}"), number.into())).collect();
    Ok(ModelDescription {
        format: "safetensors",
        architecture: name.to_owned(),
        // Nearly all of the file is weights of 4 bytes.
        parameters: std::fs::metadata(file)?.len() / 4,
        quantization: "F32".to_owned(),
        context: Some(facts.context as u64),
        kind: match facts.purpose {
            Purpose::Embedding => RunnerKind::Encoder,
            Purpose::Reranking => RunnerKind::Reranker,
        },
        metadata,
        ..ModelDescription::default()
    })
}

/// Lists are left out: those of a vocabulary have a hundred thousand entries.
fn to_json(value: GgufValue<'_>) -> Value {
    match value {
        GgufValue::String(text) if text.len() > TEXT_BYTES_MAX => Value::Null,
        GgufValue::String(text) => text.into(),
        GgufValue::Bool(flag) => flag.into(),
        GgufValue::F32(number) => json!(number),
        GgufValue::F64(number) => json!(number),
        GgufValue::Array(_) => Value::Null,
        integer => integer.integer().and_then(|number| i64::try_from(number).ok()).map_or(Value::Null, Value::from),
    }
}
