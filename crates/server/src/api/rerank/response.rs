//! `POST /v1/rerank`: the response.

use ruvllm_runtime::{RerankScores, relevance};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::request::{Asked, Document, RerankBody, Returned};
use crate::api::ids;

/// Version of Cohere's API whose fields these are.
const API_VERSION: &str = "2";
/// Documents that Cohere counts as one unit of search.
const DOCUMENTS_PER_SEARCH_UNIT: usize = 100;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RerankResponse {
    id: String,
    model: String,
    /// The best first.
    results: Vec<RerankResult>,
    usage: RerankUsage,
    meta: RerankMeta,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RerankResult {
    /// Of the document in the request.
    index: usize,
    /// 0 to 1.
    relevance_score: f64,
    /// What `relevance_score` is the sigmoid of. Not part of Jina's and Cohere's APIs.
    logit: f32,
    /// The document as an object, with its text as `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    document: Option<Map<String, Value>>,
    /// Tokens at the document's end that were not read. Not part of Jina's and Cohere's APIs.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated_tokens: Option<usize>,
}

/// As in Jina's API.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct RerankUsage {
    /// The query counts for each document.
    prompt_tokens: usize,
    total_tokens: usize,
    /// Tokens of all documents that were not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated_tokens: Option<usize>,
}

/// As in Cohere's API.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RerankMeta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
    tokens: MetaTokens,
    /// What is cut.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ApiVersion {
    /// `2`
    version: &'static str,
}

/// What Cohere would bill; nothing is billed here.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct BilledUnits {
    search_units: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct MetaTokens {
    input_tokens: usize,
    /// 0
    output_tokens: usize,
}

impl RerankResponse {
    pub(crate) fn new(scores: &RerankScores, body: RerankBody, asked: Asked) -> Self {
        let input_tokens = scores.tokens.iter().sum();
        let cut_tokens = scores.cut_tokens.iter().sum();
        let search_units = body.documents.len().div_ceil(DOCUMENTS_PER_SEARCH_UNIT);
        let mut documents: Vec<_> = body.documents.into_iter().map(Some).collect();
        let result = |index: usize| RerankResult {
            index,
            relevance_score: relevance(scores.logits[index]),
            logit: scores.logits[index],
            document: match asked.returned {
                Returned::Documents => documents[index].take().map(Document::into_fields),
                Returned::Indices => None,
            },
            truncated_tokens: some(scores.cut_tokens[index]),
        };
        Self {
            id: ids::new("rerank-"),
            model: body.model,
            results: scores.ranking().into_iter().take(asked.top_n).map(result).collect(),
            usage: RerankUsage {
                prompt_tokens: input_tokens,
                total_tokens: input_tokens,
                truncated_tokens: some(cut_tokens),
            },
            meta: RerankMeta {
                api_version: ApiVersion { version: API_VERSION },
                billed_units: BilledUnits { search_units },
                tokens: MetaTokens { input_tokens, output_tokens: 0 },
                warnings: warnings(scores),
            },
        }
    }
}

fn some(count: usize) -> Option<usize> {
    Some(count).filter(|count| *count > 0)
}

fn warnings(scores: &RerankScores) -> Vec<String> {
    let documents = scores.cut_tokens.iter().filter(|cut| **cut > 0).count();
    let of_documents = (documents > 0)
        .then(|| format!("{documents} documents were too long and were cut; truncated_tokens tells by how much"));
    let cut = scores.query_cut_tokens;
    let of_query = (cut > 0).then(|| format!("the query was too long and was cut by up to {cut} tokens"));
    of_documents.into_iter().chain(of_query).collect()
}
