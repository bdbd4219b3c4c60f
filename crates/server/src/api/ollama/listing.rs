//! `GET /api/tags` and `GET /api/ps`: the models that can be requested, and those that are loaded.

use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::stamp;
use crate::access::Caller;
use crate::api::Api;
use crate::error::ApiError;
use crate::models::{KnownModel, ModelDescription, Models};

/// When a model expires that is kept: longer than any server runs.
const KEPT: Duration = Duration::from_secs(100 * 365 * 86_400);

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TagList {
    models: Vec<Tag>,
}

/// A model that can be requested.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tag {
    /// With `:latest`, unless the name has another tag.
    name: String,
    model: String,
    /// RFC 3339.
    modified_at: String,
    /// Bytes on disk.
    size: u64,
    /// SHA-256 of the file.
    digest: String,
    details: Details,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoadedTags {
    models: Vec<LoadedTag>,
}

/// A loaded model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoadedTag {
    name: String,
    model: String,
    /// Bytes in memory.
    size: u64,
    digest: String,
    details: Details,
    /// When it is unloaded, unless it is used; RFC 3339. Far in the future if it stays.
    expires_at: String,
    /// 0: models run on the CPU.
    size_vram: u64,
    context_length: usize,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Details {
    /// The model that it is made from, if any.
    pub parent_model: String,
    pub format: String,
    pub family: String,
    pub families: Vec<String>,
    /// Such as `134.5M`.
    pub parameter_size: String,
    pub quantization_level: String,
}

/// List the models of this server
#[utoipa::path(get, path = "/api/tags", tag = "ollama",
    responses((status = 200, description = "All models that can be requested", body = TagList)))]
pub(super) async fn tags(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<TagList>, ApiError> {
    let models = api.models;
    let tag = |models: &Models, known: KnownModel| Tag {
        name: long_name(&known.name),
        model: long_name(&known.name),
        modified_at: stamp::of(known.modified),
        size: known.bytes,
        digest: known.sha256.clone().unwrap_or_default(),
        details: details(models, &known),
    };
    let listed = tokio::task::spawn_blocking(move || {
        models.known_to(&caller.tenant).into_iter().map(|known| tag(&models, known)).collect::<Vec<_>>()
    });
    let models = listed.await.map_err(|_| ApiError::internal("the models could not be listed"))?;
    Ok(Json(TagList { models }))
}

/// List the loaded models
#[utoipa::path(get, path = "/api/ps", tag = "ollama",
    responses((status = 200, description = "All loaded models", body = LoadedTags)))]
pub(super) async fn ps(State(api): State<Api>) -> Result<Json<LoadedTags>, ApiError> {
    let models = api.models;
    let listed = tokio::task::spawn_blocking(move || {
        let (known, shares) = (models.known(), models.memory().models);
        let loaded = models.all_loaded();
        let tag = |model: &crate::models::ModelInUse| {
            let known = known.iter().find(|known| *known.name == *model.name)?;
            let share = shares.iter().find(|share| *share.model == *model.name);
            let bytes = share.map_or(0, |share| share.weights_bytes + share.working_bytes + share.kv_bytes);
            Some(LoadedTag {
                name: long_name(&model.name),
                model: long_name(&model.name),
                size: bytes as u64,
                digest: known.sha256.clone().unwrap_or_default(),
                details: details(&models, known),
                expires_at: stamp::of(models.expires_at(model).unwrap_or_else(|| SystemTime::now() + KEPT)),
                size_vram: 0,
                context_length: model.runner.context(),
            })
        };
        loaded.iter().filter_map(tag).collect::<Vec<_>>()
    });
    let models = listed.await.map_err(|_| ApiError::internal("the models could not be listed"))?;
    Ok(Json(LoadedTags { models }))
}

/// Returns a name as Ollama lists it.
pub(super) fn long_name(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') { name.to_owned() } else { format!("{name}:latest") }
}

/// Reads what a model's file says; nothing of a file that cannot be read.
fn details(models: &Models, known: &KnownModel) -> Details {
    let description = models.description(&known.name, &known.file);
    description.map_or_else(|_| Details::default(), |description| Details::of(&description, known))
}

impl Details {
    pub(super) fn of(description: &ModelDescription, known: &KnownModel) -> Self {
        Self {
            parent_model: known.base.clone().unwrap_or_default(),
            format: description.format.to_owned(),
            family: description.architecture.clone(),
            families: vec![description.architecture.clone()],
            parameter_size: parameter_size(description.parameters),
            quantization_level: description.quantization.clone(),
        }
    }
}

fn parameter_size(parameters: u64) -> String {
    let parameters = parameters as f64;
    match parameters {
        _ if parameters >= 1e9 => format!("{:.1}B", parameters / 1e9),
        _ if parameters >= 1e6 => format!("{:.2}M", parameters / 1e6),
        _ if parameters >= 1e3 => format!("{:.2}K", parameters / 1e3),
        _ => format!("{parameters}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_tag_and_sizes_a_unit() {
        for (name, long) in [("smollm2", "smollm2:latest"), ("a:1b", "a:1b"), ("host:5000/a/b", "host:5000/a/b:latest")]
        {
            assert_eq!(long_name(name), long);
        }
        for (parameters, text) in [(134_515_008, "134.52M"), (7_615_616_512, "7.6B"), (1_500, "1.50K"), (7, "7")] {
            assert_eq!(parameter_size(parameters), text);
        }
    }
}
