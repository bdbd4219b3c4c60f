//! What is recorded of a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which model answered with which settings, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    pub model: String,
    /// The number of tokens of prompt and answer, rounded up to a power of two.
    pub context_bucket: u64,
    pub temperature: f64,
    pub top_p: f64,
    /// Confidence of the router, from 0 to 1.
    pub confidence: f64,
    /// The alternatives and their probabilities.
    pub probabilities: BTreeMap<String, f64>,
    /// The policy that decided, as `type/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// How the model was chosen, where there was a choice and the tenant takes part in learning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ModelChoice>,
}

/// How the model was chosen among several, as much as is needed to learn from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelChoice {
    /// What decided: `request` (which named its model), `default` (nothing was known yet), `bandit/N` with the number of
    /// outcomes that it knew, or `fastgrnn/N` with its version.
    pub by: String,
    /// The model that answers where nothing is known.
    pub default: String,
    /// What was decided by, in the learner's own format. As little as an embedding, it gives the text back.
    pub features: String,
}

/// Measured quality of an answer, from 0 to 1, and the scores that it was computed from. What people say of an answer is an
/// [`Annotation`](super::Annotation), and never part of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    pub score: f64,
    pub sources: BTreeMap<String, f64>,
}

/// The time that a request spent in each phase. Phases do not overlap; `total_ms` covers everything.
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
    /// Prompt tokens found in the cache, and those of them that were loaded from disk.
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
    /// One word to search for.
    pub kind: String,
    pub message: String,
}

/// Prompt and answer; stored only if that is enabled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texts {
    pub prompt: String,
    pub answer: String,
}

/// The memory of corrected texts that an answer was drawn with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecallUse {
    /// Texts in it.
    pub items: u64,
    /// Its mean share of the mixture.
    pub share: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WitnessEntry {
    /// The request id that the client received. All choices but the first have a suffix, such as `#2`.
    pub request: String,
    /// The id in the body of the response, the same for all choices, where the API has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The end user, as the client named them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub model: String,
    /// What ran the model, such as `native`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall: Option<RecallUse>,
    pub routing: Routing,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// The earlier request whose prompt this one repeats, soon after it was answered: another answer was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regenerates: Option<String>,
    pub latency: Latency,
    pub cache: CacheUse,
    pub tokens: TokenCounts,
    /// Why the answer ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    /// Names of documents that were part of the context.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<String>,
    /// Parameters of the request that had no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<Texts>,
    /// Digests of the embeddings, which makes them part of the hash chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_vector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_vector: Option<String>,
}

/// An entry before it is stored, with its embeddings.
#[derive(Clone, Debug, Default)]
pub struct WitnessRecord {
    pub entry: WitnessEntry,
    pub prompt_embedding: Option<Vec<f32>>,
    pub answer_embedding: Option<Vec<f32>>,
}
