//! `POST /v1/embeddings`: the response.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ruvllm_runtime::Embeddings;
use serde::Serialize;
use utoipa::ToSchema;

use super::request::{EmbeddingRequest, EncodingFormat};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingList {
    /// `list`
    object: &'static str,
    /// In the order of the texts.
    data: Vec<EmbeddingItem>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingItem {
    /// `embedding`
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// In the requested encoding.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
    /// Tokens that `truncate` dropped. Not part of OpenAI's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated_tokens: Option<usize>,
}

impl EmbeddingList {
    pub(crate) fn new(embeddings: Embeddings, request: &EmbeddingRequest) -> Self {
        let prompt_tokens = embeddings.tokens.iter().sum();
        let truncated_tokens = Some(embeddings.cut_tokens).filter(|tokens| *tokens > 0);
        let format = request.encoding_format.unwrap_or_default();
        let item =
            |(index, vector)| EmbeddingItem { object: "embedding", index, embedding: Vector::new(vector, format) };
        Self {
            object: "list",
            data: embeddings.vectors.into_iter().enumerate().map(item).collect(),
            model: request.model.clone(),
            usage: EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens, truncated_tokens },
        }
    }
}

impl Vector {
    fn new(vector: Vec<f32>, format: EncodingFormat) -> Self {
        match format {
            EncodingFormat::Float => Self::Float(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}
