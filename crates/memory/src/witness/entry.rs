//! What is written of a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which model answered with which settings, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    pub model: String,
    /// The power of two of tokens that prompt and answer fit in.
    pub context_bucket: u64,
    pub temperature: f64,
    pub top_p: f64,
    /// How sure the router was, from 0 to 1.
    pub confidence: f64,
    /// What it weighed.
    pub probabilities: BTreeMap<String, f64>,
    /// The policy that decided, as `type/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// How good an answer was, from 0 to 1, and what that was made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    pub score: f64,
    pub sources: BTreeMap<String, f64>,
}

/// Where the time went. What a request waited for, so parts may overlap with none; `total` is all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub queue_ms: f64,
    pub embedding_ms: f64,
    /// Look-up of session and policies.
    pub retrieval_ms: f64,
    pub routing_ms: f64,
    pub prefill_ms: f64,
    pub decode_ms: f64,
    pub total_ms: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUse {
    /// Prompt tokens that needed no computing, and those of them that came from disk.
    pub cached_tokens: u64,
    pub loaded_tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    pub prompt: u64,
    pub answer: u64,
}

/// Why there was no answer, or only part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One word, to search for.
    pub kind: String,
    pub message: String,
}

/// What was said; only if that is switched on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texts {
    pub prompt: String,
    pub answer: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WitnessEntry {
    /// The id that the client was told.
    pub request: String,
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    pub routing: Routing,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    pub latency: Latency,
    pub cache: CacheUse,
    pub tokens: TokenCounts,
    /// Why the answer ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    /// Names of documents that were given as context.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<Texts>,
    /// Digests of the embeddings, so that they cannot be exchanged either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_vector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_vector: Option<String>,
}

/// An entry on its way into the log.
#[derive(Clone, Debug, Default)]
pub struct WitnessRecord {
    pub entry: WitnessEntry,
    pub prompt_embedding: Option<Vec<f32>>,
    pub answer_embedding: Option<Vec<f32>>,
}
