//! What routers ask of a worker besides answers: what it is, what it serves, how busy it is, and how it reads a prompt. In the
//! shapes of vLLM and SGLang, whichever of them an endpoint comes from.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_runtime::{CacheStats, EngineStatus, PAGE_TOKENS, Request};
use serde::Serialize;
use utoipa::ToSchema;

use super::chat::request::ChatRequest;
use super::completions::request::CompletionRequest;
use super::{Api, charges, failure, ids, model_defaults, preparing};
use crate::access::Caller;
use crate::body::Body;
use crate::error::ApiError;
use crate::models::{AskedAdapters, ServedModel};
use crate::openapi::ErrorBody;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// The model that stands for the server where only one can: the first that generates. Without `model_path`: routers would look for
/// its tokenizer there, and on the hub if there is nothing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ServerInfo {
    version: &'static str,
    served_model_name: String,
    /// Context length in tokens.
    context_length: usize,
    /// Tokens whose keys and values fit into memory.
    max_total_num_tokens: usize,
    /// Tokens of a KV page.
    page_size: usize,
    tp_size: usize,
    dp_size: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelInfo {
    /// Its name: where files are on this machine concerns nobody else.
    model_path: String,
    /// Whether it generates text.
    is_generation: bool,
    /// The architecture as its file calls it, such as `llama`.
    model_type: String,
    architectures: Vec<String>,
}

/// How busy all models are together.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Load {
    dp_rank: usize,
    /// Running and waiting.
    num_reqs: usize,
    num_waiting_reqs: usize,
    /// Tokens of running sequences in KV memory, and of prompts that wait.
    num_tokens: usize,
}

/// A prompt as a model reads it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Rendered {
    request_id: String,
    model: String,
    token_ids: Vec<u32>,
}

/// The version of the server
#[utoipa::path(get, path = "/version", tag = "operations", responses((status = 200, description = "The version", body = Version)))]
pub(crate) async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}

/// What this worker serves
#[utoipa::path(get, path = "/server_info", tag = "operations",
    responses((status = 200, description = "The first generating model", body = ServerInfo),
              (status = 503, description = "No model is loaded", body = ErrorBody)))]
pub(crate) async fn server_info(State(api): State<Api>) -> Result<Json<ServerInfo>, ApiError> {
    let model = first(&api)?;
    let cache = model.runner.generator().map(|engine| engine.status().cache).unwrap_or_default();
    Ok(Json(ServerInfo {
        version: env!("CARGO_PKG_VERSION"),
        served_model_name: model.name.to_string(),
        context_length: model.runner.context(),
        max_total_num_tokens: tokens_max(&cache),
        page_size: PAGE_TOKENS,
        tp_size: 1,
        dp_size: 1,
    }))
}

/// What this worker serves
#[utoipa::path(get, path = "/get_server_info", tag = "operations",
    responses((status = 200, description = "As /server_info", body = ServerInfo),
              (status = 503, description = "No model is loaded", body = ErrorBody)))]
pub(crate) async fn get_server_info(state: State<Api>) -> Result<Json<ServerInfo>, ApiError> {
    server_info(state).await
}

/// What kind of model this worker serves
#[utoipa::path(get, path = "/model_info", tag = "operations",
    responses((status = 200, description = "The first generating model", body = ModelInfo),
              (status = 503, description = "No model is loaded", body = ErrorBody)))]
pub(crate) async fn model_info(State(api): State<Api>) -> Result<Json<ModelInfo>, ApiError> {
    let model = first(&api)?;
    let architecture = architecture(&api, &model).await?;
    Ok(Json(ModelInfo {
        model_path: model.name.to_string(),
        is_generation: model.runner.generator().is_some(),
        model_type: architecture.clone(),
        architectures: vec![architecture],
    }))
}

/// Returns a model's architecture as its file calls it.
pub(super) async fn architecture(api: &Api, model: &Arc<ServedModel>) -> Result<String, ApiError> {
    let (models, model) = (Arc::clone(&api.models), Arc::clone(model));
    // A file is read.
    let read =
        tokio::task::spawn_blocking(move || Ok(models.description(&model.name, &model.file)?.architecture.clone()));
    read.await.map_err(|_| ApiError::internal("the model could not be described"))?
}

/// What kind of model this worker serves
#[utoipa::path(get, path = "/get_model_info", tag = "operations",
    responses((status = 200, description = "As /model_info", body = ModelInfo),
              (status = 503, description = "No model is loaded", body = ErrorBody)))]
pub(crate) async fn get_model_info(state: State<Api>) -> Result<Json<ModelInfo>, ApiError> {
    model_info(state).await
}

/// How busy this worker is
#[utoipa::path(get, path = "/get_load", tag = "operations",
    responses((status = 200, description = "One entry, for all models together", body = [Load])))]
pub(crate) async fn get_load(State(api): State<Api>) -> Json<[Load; 1]> {
    let engines = api.models.all_loaded();
    let engines = engines.iter().filter_map(|model| Some(model.runner.generator()?.status()));
    Json([engines.map(Load::from).fold(Load::default(), Load::plus)])
}

/// The token ids of a conversation, without answering it
#[utoipa::path(post, path = "/v1/chat/completions/render", tag = "inference", request_body = ChatRequest,
    responses((status = 200, description = "The token ids", body = Rendered),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody)))]
pub(crate) async fn render_chat(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<ChatRequest>,
) -> Result<Json<Rendered>, ApiError> {
    let request = body.request(caller.ignored())?;
    let mut rendered = api.render(&body.model, &body.adapters()?, &caller, "chatcmpl-", vec![request]).await?;
    rendered.pop().map(Json).ok_or_else(|| ApiError::internal("the conversation was not rendered"))
}

/// The token ids of texts, without continuing them
#[utoipa::path(post, path = "/v1/completions/render", tag = "inference", request_body = CompletionRequest,
    responses((status = 200, description = "The token ids of each text", body = [Rendered]),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody)))]
pub(crate) async fn render_completion(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<CompletionRequest>,
) -> Result<Json<Vec<Rendered>>, ApiError> {
    let requests = body.requests(caller.ignored())?;
    Ok(Json(api.render(&body.model, &body.adapters()?, &caller, "cmpl-", requests).await?))
}

impl Api {
    async fn render(
        &self,
        model: &str,
        adapters: &AskedAdapters,
        caller: &Caller,
        id_prefix: &'static str,
        mut requests: Vec<Request>,
    ) -> Result<Vec<Rendered>, ApiError> {
        if requests.iter().any(|request| request.session.is_some()) {
            return Err(ApiError::invalid_param("session", "a session is not part of what is rendered; leave it out"));
        }
        let model = self.models.get_adapted(model, adapters, caller.asker()).await?;
        let engine = model.generator()?.clone();
        caller.note_model(&model.name);
        requests.iter_mut().for_each(|request| model_defaults::apply(request, &model.defaults));
        let bytes = requests.iter().map(|request| preparing::bytes_of(&request.prompt)).sum();
        let permit = self.preparing.permit(&caller.tenant, bytes).await?;
        let encoded = permit.run(move |cancellation| {
            let encode = |request: &Request| engine.encode_request(request, cancellation);
            requests.iter().map(encode).collect::<Result<Vec<_>, _>>()
        });
        let encoded = encoded.await.ok_or_else(|| ApiError::internal("the text could not be encoded"))?;
        let encoded = encoded.map_err(|error| failure::failure(&error))?;
        caller.charge(charges::of_encoding(encoded.iter().map(Vec::len).sum()));
        let rendered =
            |token_ids| Rendered { request_id: ids::new(id_prefix), model: model.name.to_string(), token_ids };
        Ok(encoded.into_iter().map(rendered).collect())
    }
}

impl Load {
    fn plus(self, other: Self) -> Self {
        Self {
            dp_rank: 0,
            num_reqs: self.num_reqs + other.num_reqs,
            num_waiting_reqs: self.num_waiting_reqs + other.num_waiting_reqs,
            num_tokens: self.num_tokens + other.num_tokens,
        }
    }
}

impl From<EngineStatus> for Load {
    fn from(status: EngineStatus) -> Self {
        Self {
            dp_rank: 0,
            num_reqs: status.running + status.waiting,
            num_waiting_reqs: status.waiting,
            num_tokens: running_tokens(&status.cache) + status.waiting_tokens,
        }
    }
}

/// Returns the model that stands for the server where only one can.
pub(super) fn first(api: &Api) -> Result<Arc<ServedModel>, ApiError> {
    api.models.first_loaded().ok_or_else(|| ApiError::unavailable("no model is loaded", None))
}

/// Returns the number of tokens whose keys and values fit into memory.
pub(super) fn tokens_max(cache: &CacheStats) -> usize {
    cache.budget_bytes.checked_div(cache.page_bytes).unwrap_or_default() * PAGE_TOKENS
}

/// Returns about how many tokens of running sequences are there.
pub(super) fn running_tokens(cache: &CacheStats) -> usize {
    (cache.used_bytes - cache.idle_bytes).checked_div(cache.page_bytes).unwrap_or_default() * PAGE_TOKENS
}
