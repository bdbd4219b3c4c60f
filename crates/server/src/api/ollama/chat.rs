//! `POST /api/chat`

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use ruvllm_store::ModelSettings;

use super::answer::{Endpoint, Lines};
use super::request::OllamaChatRequest;
use super::response::{OllamaChatResponse, Said, Tail};
use super::{OllamaError, start};
use crate::access::Caller;
use crate::api::keep_alive;
use crate::api::{Api, sse};
use crate::body::Body;
use crate::error::ApiError;

/// Continue a conversation
#[utoipa::path(post, path = "/api/chat", tag = "ollama", request_body = OllamaChatRequest,
    responses((status = 200, description = "The answer in lines, or with `stream: false` whole",
                content((OllamaChatResponse = "application/x-ndjson"), (OllamaChatResponse = "application/json"))),
              (status = 400, description = "A field is invalid", body = OllamaError),
              (status = 404, description = "There is no such model", body = OllamaError),
              (status = 429, description = "Too many requests", body = OllamaError)))]
pub(crate) async fn chat(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<OllamaChatRequest>,
) -> Result<Response, ApiError> {
    if request.is_empty() {
        let reason = start::load_only(&api, &caller, &request.model, request.keep_alive.as_ref()).await?;
        let empty = OllamaChatResponse::new(&request.model, Said::default(), Tail::without_answer(reason));
        return Ok(Json(empty).into_response());
    }
    let seen = || request.request(&ModelSettings::default(), caller.ignored());
    let (model, clock) = start::find_for(&api, &caller, (&request.model, &request.adapters()?), seen).await?;
    let asked = request.request(&model.defaults, caller.ignored())?;
    keep_alive::apply(request.keep_alive.as_ref(), &model, &api.models, &caller)?;
    let mut generation = start::start(&api, &caller, model, asked).await?;
    request.reasoning()?.note(&generation, caller.ignored())?;
    let lines = Lines {
        endpoint: Endpoint::Chat,
        model: generation.called(&request.model),
        clock,
        prompt: None,
        wants_logprobs: request.wants_logprobs(),
        reported: 0,
        told_calls: 0,
    };
    if request.streams() {
        return Ok(sse::respond(generation, lines, api.lifecycle.clone()));
    }
    generation.finish().await?;
    Ok(lines.whole(&generation))
}
