//! `POST /v1/rerank`: the request, its validation and conversion for the runtime.

use ruvllm_runtime::{RerankError, RerankRequest, TooLong};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// Maximum number of documents per request, the same as Cohere's.
const DOCUMENTS_MAX: usize = 1000;

/// A query, and documents to sort by it. Unknown parameters are ignored and named in the header `x-ruvllm-ignored`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RerankBody {
    /// A reranking model; `GET /v1/models` lists all models.
    pub model: String,
    /// What is asked or searched for.
    #[schema(min_length = 1)]
    pub query: String,
    /// 1 to 1000 documents, none of them empty.
    #[schema(min_items = 1, max_items = 1000)]
    pub documents: Vec<Document>,
    /// Number of results; all documents if it is left out.
    #[schema(minimum = 1)]
    pub top_n: Option<usize>,
    /// Whether results have the text of their document.
    pub return_documents: Option<bool>,
    /// Number of tokens after which a document is cut, even if the model takes more.
    #[schema(minimum = 1)]
    pub max_tokens_per_doc: Option<usize>,
    /// Whether documents that are too long for the model are cut, which is the default; otherwise they are refused.
    #[serde(alias = "truncation")]
    pub truncate: Option<bool>,
    /// Has no effect: only `text` of a document is read.
    #[schema(value_type = Option<Vec<String>>)]
    pub rank_fields: Option<Value>,
    /// Has no effect: a document is read as one.
    #[schema(value_type = Option<usize>)]
    pub max_chunks_per_doc: Option<Value>,
    /// End user of this request, for the log.
    pub user: Option<String>,
}

/// A text, or an object with a field `text`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, or an object with a field 'text'")]
pub enum Document {
    Text(String),
    #[schema(value_type = Object)]
    Fields(Map<String, Value>),
}

/// What results have beside their scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    Documents,
    Indices,
}

/// What the response depends on, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub top_n: usize,
    pub returned: Returned,
}

impl RerankBody {
    pub(crate) fn check(&self, default: Returned, ignored: &IgnoredParams) -> Result<Asked, ApiError> {
        let count = self.documents.len();
        if count == 0 || count > DOCUMENTS_MAX {
            let message = format!("documents has {count} documents; it must have between 1 and {DOCUMENTS_MAX}");
            return Err(ApiError::invalid_param("documents", message));
        }
        let has_no_text = |document: &Document| document.text().is_none();
        if let Some(index) = self.documents.iter().position(has_no_text) {
            let place = format!("documents[{index}].text");
            return Err(ApiError::invalid_param(&place, format!("{place} must be a text; only texts can be reranked")));
        }
        for (field, value) in [("top_n", self.top_n), ("max_tokens_per_doc", self.max_tokens_per_doc)] {
            if value == Some(0) {
                return Err(ApiError::invalid_param(field, format!("{field} is 0; it must be at least 1")));
            }
        }
        ignored.note_given("rank_fields", self.rank_fields.as_ref(), "only 'text' of a document is read")?;
        ignored.note_given("max_chunks_per_doc", self.max_chunks_per_doc.as_ref(), "a document is read as one")?;
        let returned = match self.return_documents {
            Some(true) => Returned::Documents,
            Some(false) => Returned::Indices,
            None => default,
        };
        Ok(Asked { top_n: self.top_n.unwrap_or(count).min(count), returned })
    }

    /// Converts a checked request for the reranker.
    pub(crate) fn work(&self) -> RerankRequest {
        RerankRequest {
            query: self.query.clone(),
            documents: self.documents.iter().map(|document| document.text().unwrap_or("").to_owned()).collect(),
            document_tokens_max: self.max_tokens_per_doc,
            too_long: if self.truncate.unwrap_or(true) { TooLong::CutEnd } else { TooLong::Refuse },
            ..RerankRequest::default()
        }
    }
}

impl Document {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Fields(fields) => fields.get("text")?.as_str(),
        }
    }

    /// Returns the document as an object, which is what clients expect in results.
    pub(super) fn into_fields(self) -> Map<String, Value> {
        match self {
            Self::Text(text) => Map::from_iter([("text".to_owned(), text.into())]),
            Self::Fields(fields) => fields,
        }
    }
}

/// Converts an error for the client, with the path of the text.
pub(super) fn explain(error: &RerankError) -> ApiError {
    match error {
        RerankError::EmptyQuery => ApiError::invalid_param("query", "query is empty"),
        RerankError::EmptyDocument { index } => {
            let place = format!("documents[{index}]");
            ApiError::invalid_param(&place, format!("{place} is empty"))
        }
        RerankError::TooLong { index, tokens, tokens_max } => {
            let place = format!("documents[{index}]");
            let message = format!(
                "the query and {place} have {tokens} tokens and the model takes up to {tokens_max}; shorten them, or leave \
                 out \"truncate\": false"
            );
            ApiError::invalid_param(place, message).with_code("context_length_exceeded")
        }
        RerankError::Abandoned { .. } | RerankError::Failed { .. } => {
            tracing::error!("{error}");
            ApiError::internal("the documents could not be reranked")
        }
    }
}
