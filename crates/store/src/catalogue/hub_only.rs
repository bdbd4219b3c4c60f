//! Models that only the hub has, by the address of their file. Their bytes are not pinned: they are what the publisher has
//! there on the day.

use super::{CatalogueEntry, hub};

const APACHE: &str = "Apache-2.0";
const GEMMA: &str = "Gemma Terms of Use";
const LFM: &str = "LFM Open License v1.0";

/// Name, what it is, licence, repository and file.
const MODELS: [(&str, &str, &str, &str, &str); 22] = [
    ("gemma3:1b", "Gemma 3 1B, Q4_K_M", GEMMA, "ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf"),
    ("gemma3:4b", "Gemma 3 4B, Q4_K_M", GEMMA, "ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf"),
    ("gemma3:12b", "Gemma 3 12B, Q4_K_M", GEMMA, "ggml-org/gemma-3-12b-it-GGUF", "gemma-3-12b-it-Q4_K_M.gguf"),
    ("gemma3:27b", "Gemma 3 27B, Q4_K_M", GEMMA, "ggml-org/gemma-3-27b-it-GGUF", "gemma-3-27b-it-Q4_K_M.gguf"),
    ("gemma4:e2b", "Gemma 4 E2B, Q4_K_M", APACHE, "unsloth/gemma-4-E2B-it-GGUF", "gemma-4-E2B-it-Q4_K_M.gguf"),
    ("gemma4:e4b", "Gemma 4 E4B, Q4_K_M", APACHE, "unsloth/gemma-4-E4B-it-GGUF", "gemma-4-E4B-it-Q4_K_M.gguf"),
    ("qwen3:0.6b", "Qwen3 0.6B, Q8_0", APACHE, "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf"),
    ("qwen3:1.7b", "Qwen3 1.7B, Q4_K_M", APACHE, "ggml-org/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q4_K_M.gguf"),
    ("qwen3:4b", "Qwen3 4B, Q4_K_M", APACHE, "Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf"),
    ("qwen3:8b", "Qwen3 8B, Q4_K_M", APACHE, "Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf"),
    ("qwen3:30b-a3b", "Qwen3 30B-A3B, Q4_K_M", APACHE, "Qwen/Qwen3-30B-A3B-GGUF", "Qwen3-30B-A3B-Q4_K_M.gguf"),
    ("qwen3.5:0.8b", "Qwen3.5 0.8B, Q4_K_M", APACHE, "unsloth/Qwen3.5-0.8B-GGUF", "Qwen3.5-0.8B-Q4_K_M.gguf"),
    ("qwen3.5:2b", "Qwen3.5 2B, Q4_K_M", APACHE, "unsloth/Qwen3.5-2B-GGUF", "Qwen3.5-2B-Q4_K_M.gguf"),
    ("qwen3.5:4b", "Qwen3.5 4B, Q4_K_M", APACHE, "unsloth/Qwen3.5-4B-GGUF", "Qwen3.5-4B-Q4_K_M.gguf"),
    ("qwen3.5:9b", "Qwen3.5 9B, Q4_K_M", APACHE, "unsloth/Qwen3.5-9B-GGUF", "Qwen3.5-9B-Q4_K_M.gguf"),
    ("gpt-oss:20b", "gpt-oss 20B, MXFP4", APACHE, "ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-mxfp4.gguf"),
    ("lfm2:350m", "LFM2 350M, Q4_K_M", LFM, "LiquidAI/LFM2-350M-GGUF", "LFM2-350M-Q4_K_M.gguf"),
    ("lfm2:1.2b", "LFM2 1.2B, Q4_K_M", LFM, "LiquidAI/LFM2-1.2B-GGUF", "LFM2-1.2B-Q4_K_M.gguf"),
    (
        "phi4-mini:3.8b",
        "Phi-4 mini, Q4_K_M",
        "MIT",
        "unsloth/Phi-4-mini-instruct-GGUF",
        "Phi-4-mini-instruct-Q4_K_M.gguf",
    ),
    ("smollm3:3b", "SmolLM3 3B, Q4_K_M", APACHE, "ggml-org/SmolLM3-3B-GGUF", "SmolLM3-Q4_K_M.gguf"),
    (
        "granite4:micro",
        "Granite 4.0 Micro, Q4_K_M",
        APACHE,
        "ibm-granite/granite-4.0-micro-GGUF",
        "granite-4.0-micro-Q4_K_M.gguf",
    ),
    (
        "ministral-3:3b",
        "Ministral 3 3B Instruct, Q4_K_M",
        APACHE,
        "mistralai/Ministral-3-3B-Instruct-2512-GGUF",
        "Ministral-3-3B-Instruct-2512-Q4_K_M.gguf",
    ),
];

pub(super) fn entries() -> impl Iterator<Item = CatalogueEntry> {
    MODELS.into_iter().map(|(name, description, licence, repo, file)| CatalogueEntry {
        name: name.to_owned(),
        // None: local files get names of this kind.
        aliases: Vec::new(),
        description: description.to_owned(),
        licence: licence.to_owned(),
        files: Vec::new(),
        offers: vec![vec![hub(repo, file)]],
    })
}
