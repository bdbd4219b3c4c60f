//! `POST /v1/embeddings`

pub(crate) mod request;
mod response;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_runtime::{EmbedError, EmbedRequest, Embeddings};
use tokio::time::timeout;

use self::request::EmbeddingRequest;
use self::response::EmbeddingList;
use crate::access::Caller;
use crate::api::preparing::CancelOnDrop;
use crate::api::{Api, charges, failure};
use crate::body::Body;
use crate::error::ApiError;
use crate::metrics::{Finished, FinishedReason};
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
    let work = request.work()?;
    caller.note_user(request.user.as_deref());
    let model = api.models.get(&request.model).await?;
    request.check_dimensions(model.encoder()?.dimensions())?;
    let embeddings = embed(&api, &model, &caller, work).await.map_err(|error| match error {
        Failure::Embed(error) => request.explain(&error),
        Failure::Other(error) => error,
    })?;
    Ok(Json(EmbeddingList::new(embeddings, &request)))
}

/// Computes embeddings in the time that an answer may take.
pub(crate) async fn embed(
    api: &Api,
    model: &ModelInUse,
    caller: &Caller,
    work: EmbedRequest,
) -> Result<Embeddings, Failure> {
    caller.note_model(&model.name);
    let computing = compute(model, caller, work);
    match api.answer_time_max {
        Some(time_max) => timeout(time_max, computing).await.map_err(|_| {
            let message = format!("embedding took longer than {} s; send fewer texts at a time", time_max.as_secs());
            failure::deadline_passed(message)
        })?,
        None => computing.await,
    }
}

pub(crate) enum Failure {
    Embed(EmbedError),
    Other(ApiError),
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Other(error)
    }
}

/// Waits for a permit and computes. When this is dropped, because the client disconnected or its time is up, it ends
/// soon; what was computed is charged in any case.
async fn compute(model: &ModelInUse, caller: &Caller, work: EmbedRequest) -> Result<Embeddings, Failure> {
    let arrived = Instant::now();
    let _end = CancelOnDrop(work.cancellation.clone());
    let permit = model.embedding.enter().await.map_err(|full| failure::queue_full(full.to_string()))?;
    model.metrics.started(arrived.elapsed());
    let encoder = Arc::clone(model.encoder().map_err(ApiError::from)?);
    let reservation = caller.reserve(&charges::demand_of_embedding(&work, encoder.context()))?;
    let model = model.clone();
    let computing = tokio::task::spawn_blocking(move || {
        let computed = encoder.embed(&work);
        let (reason, prompt_tokens) = match &computed {
            Ok(embeddings) => (FinishedReason::Stop, embeddings.tokens.iter().sum()),
            Err(EmbedError::Abandoned { tokens }) => (FinishedReason::Abort, *tokens),
            Err(_) => (FinishedReason::Error, 0),
        };
        reservation.charge(prompt_tokens as u64);
        let took = arrived.elapsed();
        model.metrics.finished(&Finished { reason, took, prompt_tokens, cached_tokens: 0, generated_tokens: 0 });
        drop(permit);
        computed
    });
    computing.await.map_err(|_| ApiError::internal("the texts could not be embedded"))?.map_err(Failure::Embed)
}
