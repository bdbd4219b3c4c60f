//! `POST /v1/messages` and `POST /v1/messages/count_tokens`, compatible with Anthropic's API.

mod blocks;
mod events;
pub(crate) mod request;
pub(crate) mod response;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use self::events::MessageWire;
use self::request::{CountTokensRequest, MessagesRequest, Metadata};
use self::response::{AnswerBlock, MessageObject, MessageUsage, TokenCount, stop_reason};
use crate::access::Caller;
use crate::api::sections::Sections;
use crate::api::{Api, failure, ids, sse};
use crate::body::Body;
use crate::error::ApiError;
use crate::models::AskedAdapters;
use crate::request_id::RequestId;

/// Fields that have other names in this API.
const FIELDS: [(&str, &str); 3] =
    [("stop", "stop_sequences"), ("prompt", "messages"), ("response_format", "output_config.format")];

/// Continue a conversation, with Anthropic's API
///
/// `cache_control` is accepted and has no effect: common prefixes of prompts are always cached. The header
/// `anthropic-version` is not required. Errors have Anthropic's format.
#[utoipa::path(post, path = "/v1/messages", tag = "inference", request_body = MessagesRequest,
    responses((status = 200, description = "The answer, or with `stream: true` its events",
                content((MessageObject = "application/json"), (String = "text/event-stream"))),
              (status = 400, description = "A field is invalid; the message names it"),
              (status = 404, description = "There is no such model"),
              (status = 429, description = "Too many requests")))]
pub(crate) async fn create_message(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Extension(request_id): Extension<RequestId>,
    Body(request): Body<MessagesRequest>,
) -> Result<Response, ApiError> {
    let asked = request.request(caller.ignored())?;
    let adapters = request.adapters()?;
    let user = request.metadata.as_ref().and_then(Metadata::user);
    caller.note_user("metadata.user_id", user)?;
    let id = ids::new("msg_");
    caller.note_response(&id);
    let started = api.generate(&request.model, request.keep_alive.as_ref(), &adapters, &caller, vec![asked]).await;
    let mut generation = started.map_err(|error| failure::renamed(error, &FIELDS))?;
    request.reasoning()?.note(&generation, caller.ignored())?;
    let stop_sequences = request.stop_sequences.clone().unwrap_or_default();
    let mut message = MessageObject {
        id,
        kind: "message",
        role: "assistant",
        model: generation.called(&request.model),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: MessageUsage::from(generation.usage()),
    };
    if request.streams() {
        let wire = MessageWire { opening: Some(message), sections: Sections::default(), stop_sequences, request_id };
        return Ok(sse::respond(generation, wire, api.lifecycle.clone()));
    }
    let sections = Sections::of(&mut generation).await?;
    let (stop_reason, stop_sequence) = stop_reason(generation.response(0), &stop_sequences);
    message.content = AnswerBlock::all(&sections);
    message.stop_reason = Some(stop_reason);
    message.stop_sequence = stop_sequence;
    message.usage = generation.usage().into();
    Ok(Json(message).into_response())
}

/// Count the tokens of a prompt, with Anthropic's API
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "inference", request_body = CountTokensRequest,
    responses((status = 200, description = "The number of tokens", body = TokenCount),
              (status = 400, description = "A field is invalid; the message names it"),
              (status = 404, description = "There is no such model")))]
pub(crate) async fn count_tokens(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CountTokensRequest>,
) -> Result<Json<TokenCount>, ApiError> {
    let (prompt, tools) = request.prompt(caller.ignored())?;
    let model = api.models.get_adapted(&request.model, &AskedAdapters::Default, caller.asker()).await?;
    let engine = model.generator()?.clone();
    caller.note_model(&model.name);
    let tokens = api.encode(&caller, engine, prompt, tools).await?;
    Ok(Json(TokenCount { input_tokens: tokens.len() }))
}
