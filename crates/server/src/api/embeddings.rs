//! `POST /v1/embeddings`

pub(crate) mod request;
mod response;

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_runtime::{EmbedError, EmbedRequest, Embeddings};

use self::request::EmbeddingRequest;
use self::response::EmbeddingList;
use crate::access::Caller;
use crate::api::encoding::{self, Computed, Failure};
use crate::api::{Api, charges};
use crate::body::Body;
use crate::error::ApiError;
use crate::metrics::FinishedReason;
use crate::models::ModelInUse;
use crate::openapi::ErrorBody;

/// Compute embeddings of texts
#[utoipa::path(post, path = "/v1/embeddings", tag = "inference", request_body = EmbeddingRequest,
    responses((status = 200, description = "A vector of length 1 for each text", body = EmbeddingList),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody),
              (status = 429, description = "Too many requests", body = ErrorBody)))]
pub(crate) async fn embeddings(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<EmbeddingRequest>,
) -> Result<Json<EmbeddingList>, ApiError> {
    let embeddings = answer(&api, &caller, &request).await?;
    Ok(Json(EmbeddingList::new(embeddings, &request)))
}

/// Does what a request asks for.
pub(crate) async fn answer(api: &Api, caller: &Caller, request: &EmbeddingRequest) -> Result<Embeddings, ApiError> {
    let work = request.work()?;
    caller.note_user("user", request.user.as_deref())?;
    let model = api.models.get(&request.model).await?;
    request.check_dimensions(model.encoder()?.dimensions())?;
    embed(api, &model, caller, work).await.map_err(|error| match error {
        Failure::Model(error) => request.explain(&error),
        Failure::Other(error) => error,
    })
}

/// Computes embeddings in the time that an answer may take.
pub(crate) async fn embed(
    api: &Api,
    model: &ModelInUse,
    caller: &Caller,
    work: EmbedRequest,
) -> Result<Embeddings, Failure<EmbedError>> {
    caller.note_model(&model.name);
    let encoder = Arc::clone(model.encoder().map_err(ApiError::from)?);
    let demand = charges::demand_of_embedding(&work, encoder.context());
    let cancellation = work.cancellation.clone();
    let computing = encoding::compute(model, caller, demand, cancellation, move || encoder.embed(&work));
    encoding::in_time(api.answer_time_max, "embedding", "texts", computing).await
}

impl Computed for Result<Embeddings, EmbedError> {
    fn outcome(&self) -> (FinishedReason, usize) {
        match self {
            Ok(embeddings) => (FinishedReason::Stop, embeddings.tokens.iter().sum()),
            Err(EmbedError::Abandoned { tokens }) => (FinishedReason::Abort, *tokens),
            Err(_) => (FinishedReason::Error, 0),
        }
    }
}
