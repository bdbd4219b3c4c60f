//! `ruvllm.v1.RuvLlm`: generating, embeddings, feedback and the memory, as over HTTP.

pub(super) mod generate;
mod messages;

use axum::Extension;
use axum::extract::State;

use self::messages::{
    EmbedRequest, EmbedResponse, Embedding, FeedbackRequest, FeedbackResponse, MemoryItem, SearchMemoryRequest,
    SearchMemoryResponse,
};
use super::{Grpc, small};
use crate::access::Caller;
use crate::api::completions::request::PromptField;
use crate::api::embeddings::request::EmbeddingRequest;
use crate::api::feedback::{self, ScoreField};
use crate::api::memory::search::SearchParams;
use crate::api::{embeddings, failure};
use crate::error::ApiError;
use crate::grpc::{Call, Reply};

fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

pub(super) async fn embed(
    State(grpc): State<Grpc>,
    Extension(caller): Extension<Caller>,
    Call(call): Call<EmbedRequest>,
) -> Result<Reply<EmbedResponse>, ApiError> {
    let (input, field) = match (call.texts, call.tokens) {
        (texts, tokens) if tokens.is_empty() => (PromptField::Texts(texts), "texts"),
        (texts, tokens) if texts.is_empty() => {
            (PromptField::TokenLists(tokens.into_iter().map(|tokens| tokens.ids).collect()), "tokens")
        }
        _ => return Err(ApiError::invalid_param("tokens", "give texts or tokens, not both")),
    };
    let request = EmbeddingRequest {
        model: given(call.model).map_or_else(|| grpc.embedding(), Ok)?,
        input,
        truncate: Some(call.truncate),
        user: given(call.user),
        ..EmbeddingRequest::default()
    };
    let computed = embeddings::answer(&grpc.api, &caller, &request).await;
    let computed = computed.map_err(|error| failure::renamed(error, &[("input", field)]))?;
    Ok(Reply(EmbedResponse {
        prompt_tokens: small(computed.tokens.iter().sum(), u32::MAX),
        embeddings: computed.vectors.into_iter().map(|values| Embedding { values }).collect(),
    }))
}

pub(super) async fn feedback(
    State(grpc): State<Grpc>,
    Extension(caller): Extension<Caller>,
    Call(call): Call<FeedbackRequest>,
) -> Result<Reply<FeedbackResponse>, ApiError> {
    let request = feedback::FeedbackRequest {
        request_id: call.request_id,
        score: call.score.map(ScoreField::Number),
        correction: call.correction,
        reason: call.reason,
        user: given(call.user),
    };
    let accepted = grpc.api.accept_feedback(&caller, request).await?;
    Ok(Reply(FeedbackResponse { id: accepted.id, request_id: accepted.request_id, withheld: accepted.withheld }))
}

pub(super) async fn search_memory(
    State(grpc): State<Grpc>,
    Extension(caller): Extension<Caller>,
    Call(call): Call<SearchMemoryRequest>,
) -> Result<Reply<SearchMemoryResponse>, ApiError> {
    let params = SearchParams {
        like: call.text,
        kind: given(call.kind),
        tenant: call.tenant,
        limit: call.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    let found = grpc.api.search_memory(&caller, params).await;
    let found = found.map_err(|error| failure::renamed(error, &[("like", "text")]))?;
    let items = found.into_iter().map(|item| MemoryItem {
        id: item.id,
        kind: item.kind.to_owned(),
        similarity: item.similarity,
        json: item.item.to_string(),
    });
    Ok(Reply(SearchMemoryResponse { items: items.collect() }))
}
