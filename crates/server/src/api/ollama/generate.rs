//! `POST /api/generate`

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use ruvllm_runtime::{Engine, Prompt, Request, Tools};
use ruvllm_store::ModelSettings;

use super::answer::{Endpoint, Lines};
use super::request::GenerateRequest;
use super::response::{GenerateResponse, Said, Tail};
use super::{OllamaError, start};
use crate::access::Caller;
use crate::api::choice::NAME_IT;
use crate::api::keep_alive;
use crate::api::preparing::bytes_of;
use crate::api::{Api, failure, sse};
use crate::body::Body;
use crate::error::ApiError;

/// After longer prompts, `context` is not returned: they would have to be encoded twice for it.
const CONTEXT_BYTES_MAX: usize = 32 << 10;

/// Answer a prompt, or continue a text
#[utoipa::path(post, path = "/api/generate", tag = "ollama", request_body = GenerateRequest,
    responses((status = 200, description = "The answer in lines, or with `stream: false` whole",
                content((GenerateResponse = "application/x-ndjson"), (GenerateResponse = "application/json"))),
              (status = 400, description = "A field is invalid", body = OllamaError),
              (status = 404, description = "There is no such model", body = OllamaError),
              (status = 429, description = "Too many requests", body = OllamaError)))]
pub(crate) async fn generate(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<GenerateRequest>,
) -> Result<Response, ApiError> {
    if request.is_empty() {
        let reason = start::load_only(&api, &caller, &request.model, request.keep_alive.as_ref()).await?;
        let empty = GenerateResponse::new(&request.model, Said::default(), Tail::without_answer(reason));
        return Ok(Json(empty).into_response());
    }
    if api.models.is_auto(&request.model) && request.has_context() {
        let message = format!("the tokens of a conversation mean something to one model only; {NAME_IT}");
        return Err(ApiError::invalid_param("context", message));
    }
    let seen = || request.request(&ModelSettings::default(), caller.ignored());
    let (model, clock) = start::find_for(&api, &caller, (&request.model, &request.adapters()?), seen).await?;
    let mut asked = request.request(&model.defaults, caller.ignored())?;
    keep_alive::apply(request.keep_alive.as_ref(), &model, &api.models, &caller)?;
    let engine = model.generator().map_err(ApiError::from)?.clone();
    let prompt = tokens(&api, &caller, engine, &request, &mut asked).await?;
    let mut generation = start::start(&api, &caller, model, asked).await;
    if let Err(error) = &mut generation {
        *error = failure::renamed(error.clone(), &[("messages", "prompt")]);
    }
    let mut generation = generation?;
    request.reasoning()?.note(&generation, caller.ignored())?;
    let lines = Lines {
        endpoint: Endpoint::Generate,
        model: generation.called(&request.model),
        clock,
        prompt,
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

/// Returns the tokens of the prompt, for `context`. With a `context` in the request, they become the prompt, after it.
async fn tokens(
    api: &Api,
    caller: &Caller,
    engine: Engine,
    request: &GenerateRequest,
    asked: &mut Request,
) -> Result<Option<Vec<u32>>, ApiError> {
    let before = request.context.as_deref().filter(|context| !context.is_empty());
    if request.is_raw() || (before.is_none() && bytes_of(&asked.prompt) > CONTEXT_BYTES_MAX) {
        return Ok(None);
    }
    let bos = engine.tokenizer().bos();
    let mut turn = api.encode(caller, engine, asked.prompt.clone(), Tools::default()).await?;
    let Some(before) = before else { return Ok(Some(turn)) };
    // The conversation begins once.
    if bos.is_some() && turn.first().copied() == bos {
        turn.remove(0);
    }
    let tokens: Vec<u32> = before.iter().copied().chain(turn).collect();
    asked.prompt = Prompt::Tokens(tokens.clone());
    Ok(Some(tokens))
}
