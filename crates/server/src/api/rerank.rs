//! `POST /v1/rerank`, `/v2/rerank` and `/rerank`: documents sorted by how well they answer a query, in the formats of Jina and
//! Cohere, which agree but for what is returned by default.

pub(crate) mod request;
mod response;

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_runtime::{RerankError, RerankScores};

use self::request::{RerankBody, Returned};
use self::response::RerankResponse;
use crate::access::Caller;
use crate::api::encoding::{self, Computed, Failure};
use crate::api::{Api, charges};
use crate::body::Body;
use crate::error::ApiError;
use crate::metrics::FinishedReason;
use crate::openapi::ErrorBody;

/// Sort documents by their relevance to a query
///
/// As Jina's and Cohere's v1 clients ask. Documents are part of the results unless `return_documents` is false.
#[utoipa::path(post, path = "/v1/rerank", tag = "inference", request_body = RerankBody,
    responses((status = 200, description = "Documents with their scores, the best first", body = RerankResponse),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody),
              (status = 429, description = "Too many requests", body = ErrorBody)))]
pub(crate) async fn rerank(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<RerankBody>,
) -> Result<Json<RerankResponse>, ApiError> {
    answer(&api, &caller, body, Returned::Documents).await
}

/// Sort documents by their relevance to a query, without a version
///
/// The same as `/v1/rerank`.
#[utoipa::path(post, path = "/rerank", tag = "inference", request_body = RerankBody,
    responses((status = 200, description = "Documents with their scores, the best first", body = RerankResponse),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody),
              (status = 429, description = "Too many requests", body = ErrorBody)))]
pub(crate) async fn rerank_without_version(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<RerankBody>,
) -> Result<Json<RerankResponse>, ApiError> {
    answer(&api, &caller, body, Returned::Documents).await
}

/// Sort documents by their relevance to a query, as Cohere's v2 clients ask
///
/// The same as `/v1/rerank`, but documents are part of the results only if `return_documents` is true.
#[utoipa::path(post, path = "/v2/rerank", tag = "inference", request_body = RerankBody,
    responses((status = 200, description = "Indices of documents with their scores, the best first", body = RerankResponse),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody),
              (status = 429, description = "Too many requests", body = ErrorBody)))]
pub(crate) async fn rerank_v2(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<RerankBody>,
) -> Result<Json<RerankResponse>, ApiError> {
    answer(&api, &caller, body, Returned::Indices).await
}

async fn answer(
    api: &Api,
    caller: &Caller,
    body: RerankBody,
    default: Returned,
) -> Result<Json<RerankResponse>, ApiError> {
    let asked = body.check(default, caller.ignored())?;
    caller.note_user("user", body.user.as_deref())?;
    let model = api.models.get(&body.model).await?;
    let reranker = Arc::clone(model.reranker()?);
    caller.note_model(&model.name);
    let work = body.work();
    let demand = charges::demand_of_reranking(&work, reranker.context());
    let cancellation = work.cancellation.clone();
    let computing = encoding::compute(&model, caller, demand, cancellation, move || reranker.rerank(&work));
    let computed = encoding::in_time(api.answer_time_max, "reranking", "documents", computing).await;
    let scores = computed.map_err(|error| match error {
        Failure::Model(error) => request::explain(&error),
        Failure::Other(error) => error,
    })?;
    Ok(Json(RerankResponse::new(&scores, body, asked)))
}

impl Computed for Result<RerankScores, RerankError> {
    fn outcome(&self) -> (FinishedReason, usize) {
        match self {
            Ok(scores) => (FinishedReason::Stop, scores.tokens.iter().sum()),
            Err(RerankError::Abandoned { tokens }) => (FinishedReason::Abort, *tokens),
            Err(_) => (FinishedReason::Error, 0),
        }
    }
}
