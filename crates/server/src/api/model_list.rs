//! `GET /v1/models`: the available models.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Caller;
use crate::api::Api;
use crate::error::ApiError;
use crate::models::{KnownModel, ModelError, Models, unix_s};
use crate::openapi::ErrorBody;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// `list`
    object: &'static str,
    data: Vec<ModelCard>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ModelCard {
    id: String,
    /// `model`
    object: &'static str,
    /// Unix time when the model was loaded, or added to the store.
    created: u64,
    owned_by: &'static str,
    /// Whether it is loaded. Other models are loaded on their first request.
    loaded: bool,
    /// Context length in tokens: what it is loaded with, or what its file allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u64>,
    /// `completion`, `tools`, `thinking`, `embedding`, `rerank`
    capabilities: Vec<&'static str>,
    /// The model that it is made from, or an alias of.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// Of an adapter, the name of its file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<String>,
    /// Of a loaded adapter, the digest of its content.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

/// List the models of this server
#[utoipa::path(get, path = "/v1/models", tag = "inference",
    responses((status = 200, description = "Loaded models, and those that can be loaded", body = ModelList)))]
pub(crate) async fn list_models(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ModelList>, ApiError> {
    let cards = in_background(move || {
        let known = api.models.known_to(&caller.tenant);
        known.into_iter().map(|model| ModelCard::of(model, &api.models)).collect()
    });
    Ok(Json(ModelList { object: "list", data: cards.await? }))
}

/// Describe a model
#[utoipa::path(get, path = "/v1/models/{model}", tag = "inference", params(("model" = String, Path)),
    responses((status = 200, description = "The model", body = ModelCard),
              (status = 404, description = "There is no such model", body = ErrorBody)))]
pub(crate) async fn show_model(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    let card = in_background(move || Ok(ModelCard::of(api.models.find_known_to(&name, &caller.tenant)?, &api.models)));
    Ok(Json(card.await?.map_err(|error: ModelError| ApiError::from(error))?))
}

/// Files are read, which may take time.
async fn in_background<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(read).await.map_err(|_| ApiError::internal("the models could not be listed"))
}

impl ModelCard {
    fn of(model: KnownModel, models: &Models) -> Self {
        let served_by = model.adapter.as_ref().and(model.base.as_ref()).unwrap_or(&model.name);
        let loaded = models.loaded_as(served_by);
        // A file that cannot be read is listed without what it would say.
        let description = models.description(&model.name, &model.file).ok();
        let context = loaded.as_ref().map(|loaded| loaded.runner.context() as u64);
        Self {
            object: "model",
            created: unix_s(
                loaded.as_ref().filter(|_| model.adapter.is_none()).map_or(model.modified, |loaded| loaded.loaded_at),
            ),
            owned_by: "ruvllm",
            loaded: loaded.is_some() && model.adapter.as_ref().is_none_or(|adapter| adapter.is_loaded),
            max_model_len: context.or_else(|| description.as_ref()?.context),
            capabilities: description.map_or_else(Vec::new, |description| description.capabilities()),
            parent: model.base,
            digest: model.sha256.filter(|_| model.adapter.as_ref().is_some_and(|adapter| adapter.is_loaded)),
            root: model.adapter.map(|adapter| adapter.file),
            id: model.name,
        }
    }
}
