//! `POST /v1/responses`, and stored responses.

mod answer;
mod events;
mod input;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod store;
mod tools;

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::answer::Answer;
use self::events::ResponseWire;
use self::request::{Asked, ResponsesRequest};
use self::response::{DeletedResponse, ResponseObject};
use self::store::ResponseStore;
use crate::access::Caller;
use crate::api::sections::Sections;
use crate::api::{Api, failure, sse};
use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

/// Fields that have other names in this API.
const FIELDS: [(&str, &str); 4] = [
    ("messages", "input"),
    ("prompt", "input"),
    ("max_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
];

/// State of these endpoints.
#[derive(Clone, Debug)]
struct Responses {
    api: Api,
    store: Arc<ResponseStore>,
}

pub(crate) fn router(api: Api) -> OpenApiRouter {
    let responses = Responses { api, store: Arc::default() };
    let router = OpenApiRouter::new().routes(routes!(create_response)).routes(routes!(get_response, delete_response));
    router.with_state(responses)
}

/// Answer, and store the answer
///
/// The server stores the newest 1024 responses, up to 64 MiB, in memory; they do not survive a restart.
#[utoipa::path(post, path = "/v1/responses", tag = "inference", request_body = ResponsesRequest,
    responses((status = 200, description = "The response, or with `stream: true` its events",
                content((ResponseObject = "application/json"), (String = "text/event-stream"))),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody),
              (status = 429, description = "Too many requests", body = ErrorBody)))]
async fn create_response(
    State(Responses { api, store }): State<Responses>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let Asked { request: asked, conversation, mut object, tools, wants_logprobs } =
        request.ask(&store, &caller.tenant, caller.ignored())?;
    let adapters = request.adapters()?;
    caller.note_user("user", request.user.as_deref())?;
    caller.note_user("safety_identifier", request.safety_identifier.as_deref())?;
    caller.note_response(&object.id);
    let started = api.generate(&request.model, request.keep_alive.as_ref(), &adapters, &caller, vec![asked]).await;
    let mut generation = started.map_err(|error| failure::renamed(error, &FIELDS))?;
    request.reasoning()?.note(&generation, caller.ignored())?;
    object.model = generation.called(&request.model);
    // A policy may have set what the request left unset.
    (object.temperature, object.top_p) = (generation.response(0).temperature, generation.response(0).top_p);
    let mut answer = Answer {
        object,
        tools,
        wants_logprobs,
        conversation,
        store: request.stores().then_some(store),
        tenant: caller.tenant.clone(),
        item_ids: Vec::new(),
    };
    if request.streams() {
        return Ok(sse::respond(generation, ResponseWire::new(answer), api.lifecycle.clone()));
    }
    let mut sections = Sections::of(&mut generation).await?;
    sections.open_if_none();
    answer.complete(&sections, &generation);
    Ok(Json(answer.object).into_response())
}

/// Return a stored response
#[utoipa::path(get, path = "/v1/responses/{id}", tag = "inference", params(("id" = String, Path, description = "Id of \
                                                                                                                the \
                                                                                                                response")),
    responses((status = 200, description = "The response", body = ResponseObject),
              (status = 404, description = "It was never stored, or is no longer stored", body = ErrorBody)))]
async fn get_response(
    State(Responses { store, .. }): State<Responses>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(asked): Query<Vec<(String, String)>>,
) -> Result<Response, ApiError> {
    if let Some((name, _)) = asked.iter().find(|(name, value)| (name.as_str(), value.as_str()) != ("stream", "false")) {
        let message = format!("the query parameter {name} is not supported: a response is returned as it was stored");
        return Err(ApiError::invalid_param(name, message).with_code("unsupported_parameter"));
    }
    let stored = store.get(&caller.tenant, &id).ok_or_else(|| no_response(&id))?;
    Ok(Json(&stored.object).into_response())
}

/// Delete a response
#[utoipa::path(delete, path = "/v1/responses/{id}", tag = "inference",
    params(("id" = String, Path, description = "Id of the response")),
    responses((status = 200, description = "The response is deleted", body = DeletedResponse),
              (status = 404, description = "There is no such response", body = ErrorBody)))]
async fn delete_response(
    State(Responses { store, .. }): State<Responses>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<DeletedResponse>, ApiError> {
    if store.delete(&caller.tenant, &id) {
        return Ok(Json(DeletedResponse { id, object: "response", deleted: true }));
    }
    Err(no_response(&id))
}

fn no_response(id: &str) -> ApiError {
    let shown: String = id.chars().take(128).collect();
    let message =
        format!("there is no response {shown:?}; responses are stored for a while only, and not with store: false");
    ApiError::not_found(message).with_param("id").with_code("response_not_found")
}
