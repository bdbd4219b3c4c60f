//! Which architecture of GGUF a model of transformers is.

use super::HuggingFaceError;
use super::config::Settings;
use crate::formats::gguf::shortened;

/// Classes of transformers, and the architecture's name in GGUF.
const CLASSES: &[(&str, &str)] = &[
    ("LlamaForCausalLM", "llama"),
    ("MistralForCausalLM", "llama"),
    ("Ministral3ForCausalLM", "mistral3"),
    ("Mistral3ForConditionalGeneration", "mistral3"),
    ("Qwen2ForCausalLM", "qwen2"),
    ("Qwen3ForCausalLM", "qwen3"),
    ("Qwen3MoeForCausalLM", "qwen3moe"),
    ("Qwen3_5ForCausalLM", "qwen35"),
    ("Qwen3_5ForConditionalGeneration", "qwen35"),
    ("Qwen3_5MoeForCausalLM", "qwen35moe"),
    ("Qwen3_5MoeForConditionalGeneration", "qwen35moe"),
    ("Gemma2ForCausalLM", "gemma2"),
    ("Gemma3ForCausalLM", "gemma3"),
    ("Gemma3ForConditionalGeneration", "gemma3"),
    ("Gemma4ForCausalLM", "gemma4"),
    ("Gemma4ForConditionalGeneration", "gemma4"),
    ("Phi3ForCausalLM", "phi3"),
    ("SmolLM3ForCausalLM", "smollm3"),
    ("GraniteForCausalLM", "granite"),
    ("GptOssForCausalLM", "gpt-oss"),
    ("Lfm2ForCausalLM", "lfm2"),
    ("Lfm2MoeForCausalLM", "lfm2moe"),
];

pub(super) fn architecture(settings: &Settings) -> Result<&'static str, HuggingFaceError> {
    let class = settings.get("architectures").and_then(|classes| classes.get(0)?.as_str());
    let class = class.ok_or_else(|| HuggingFaceError::MissingSetting { key: "architectures".to_owned() })?;
    let known = CLASSES.iter().find(|(name, _)| *name == class);
    let unknown = || HuggingFaceError::Architecture {
        class: shortened(class),
        known: CLASSES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
    };
    match known.ok_or_else(unknown)?.1 {
        // The first of them are Mistral's older model.
        "mistral3" if settings.text("model_type") == Some("mistral") => Ok("llama"),
        architecture => Ok(architecture),
    }
}
