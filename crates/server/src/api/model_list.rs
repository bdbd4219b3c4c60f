//! `GET /v1/models`: the available models.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::Api;
use crate::error::ApiError;
use crate::models::{ModelError, unix_s};
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
    /// Context length in tokens, if it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    /// The model that this is an alias of.
    #[serde(skip_serializing_if = "Option::is_none")]
    alias_of: Option<String>,
}

/// List the models of this server
#[utoipa::path(get, path = "/v1/models", tag = "inference",
    responses((status = 200, description = "Loaded models, and those that can be loaded", body = ModelList)))]
pub(crate) async fn list_models(State(api): State<Api>) -> Json<ModelList> {
    Json(ModelList { object: "list", data: cards(&api).into_values().collect() })
}

/// Describe a model
#[utoipa::path(get, path = "/v1/models/{model}", tag = "inference", params(("model" = String, Path)),
    responses((status = 200, description = "The model", body = ModelCard),
              (status = 404, description = "There is no such model", body = ErrorBody)))]
pub(crate) async fn show_model(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<ModelCard>, ApiError> {
    let mut cards = cards(&api);
    let card = cards.remove(&name).ok_or_else(|| ModelError::Unknown { name, known: cards.into_keys().collect() })?;
    Ok(Json(card))
}

/// Returns all models, by name.
fn cards(api: &Api) -> BTreeMap<String, ModelCard> {
    let card = |id: &str, created, max_model_len: Option<usize>| ModelCard {
        id: id.to_owned(),
        object: "model",
        created,
        owned_by: "ruvllm",
        loaded: max_model_len.is_some(),
        max_model_len,
        alias_of: None,
    };
    let mut cards = BTreeMap::new();
    for file in api.models.stored() {
        let modified = std::fs::metadata(&file.path).and_then(|facts| facts.modified());
        cards.insert(file.name.clone(), card(&file.name, modified.map_or(0, unix_s), None));
    }
    for model in api.models.all_loaded() {
        let context = Some(model.runner.context());
        cards.insert(model.name.to_string(), card(&model.name, unix_s(model.loaded_at), context));
    }
    for (alias, name) in api.models.aliases() {
        if let Some(card) = cards.get(name) {
            let card = ModelCard { id: alias.clone(), alias_of: Some(name.clone()), ..card.clone() };
            cards.insert(alias.clone(), card);
        }
    }
    cards
}
