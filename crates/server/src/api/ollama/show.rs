//! `POST /api/show`: what is known of a model.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::listing::Details;
use super::{OllamaError, modelfile, stamp, start};
use crate::access::Caller;
use crate::api::Api;
use crate::body::Body;
use crate::error::ApiError;
use crate::models::{KnownModel, ModelDescription};

#[derive(Debug, Deserialize, ToSchema)]
pub struct ShowRequest {
    /// A model of this server; `GET /api/tags` lists them.
    #[schema(example = "smollm2")]
    pub model: Option<String>,
    /// The same under its old name.
    pub name: Option<String>,
    /// Has no effect: long lists, such as the vocabulary, are never shown.
    pub verbose: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShowResponse {
    modelfile: String,
    /// Default parameters, one per line.
    #[serde(skip_serializing_if = "String::is_empty")]
    parameters: String,
    /// The model's own chat template, in Jinja.
    template: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    license: String,
    details: Details,
    #[schema(value_type = Vec<Object>)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<Value>,
    /// Metadata of the model's file.
    #[schema(value_type = Object)]
    model_info: Map<String, Value>,
    /// `completion`, `tools`, `thinking`, `embedding`, `rerank`
    capabilities: Vec<&'static str>,
    /// RFC 3339.
    modified_at: String,
}

/// Describe a model
#[utoipa::path(post, path = "/api/show", tag = "ollama", request_body = ShowRequest,
    responses((status = 200, description = "The model", body = ShowResponse),
              (status = 404, description = "There is no such model", body = OllamaError)))]
pub(crate) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ShowRequest>,
) -> Result<Json<ShowResponse>, ApiError> {
    let name = model_of(request.model, request.name)?;
    if request.verbose == Some(true) {
        caller.ignored().note("verbose", "long lists are not shown")?;
    }
    let (models, tenant) = (api.models, caller.tenant.clone());
    let found = tokio::task::spawn_blocking(move || {
        let known = models.find_known_to(&name, &tenant)?;
        let description = models.description(&known.name, &known.file)?;
        Ok((known, description))
    });
    let found = found.await.map_err(|_| ApiError::internal("the model could not be read"))?;
    let (known, description) = found.map_err(start::unknown)?;
    Ok(Json(ShowResponse::new(known, &description)))
}

/// Returns the name of a model, given under its new name or its old one.
pub(super) fn model_of(model: Option<String>, name: Option<String>) -> Result<String, ApiError> {
    let given = [model, name].into_iter().flatten().find(|name| !name.is_empty());
    given.ok_or_else(|| {
        let error = ApiError::invalid("'model' is required").with_code("missing_required_parameter");
        error.with_param("model")
    })
}

impl ShowResponse {
    fn new(known: KnownModel, description: &Arc<ModelDescription>) -> Self {
        let settings = &known.settings;
        let license = match &settings.license[..] {
            [] => description.license.clone().or_else(|| known.licence.clone()).unwrap_or_default(),
            given => given.join("\n"),
        };
        // The name of an adapter makes the same model again.
        let mut shown = settings.clone();
        if known.adapter.is_some() {
            shown.adapters = vec![known.name.clone()];
        }
        let message = |message: &ruvllm_store::FirstMessage| json!({"role": message.role, "content": message.content});
        Self {
            modelfile: modelfile::write(known.base.as_deref().unwrap_or(&known.name), &shown),
            parameters: modelfile::parameters(&settings.parameters),
            template: description.chat_template.clone().unwrap_or_default(),
            system: settings.system.clone(),
            license,
            details: Details::of(description, &known),
            messages: settings.messages.iter().map(message).collect(),
            model_info: model_info(description),
            capabilities: description.capabilities(),
            modified_at: stamp::of(known.modified),
        }
    }
}

fn model_info(description: &ModelDescription) -> Map<String, Value> {
    let mut info = description.metadata.clone();
    info.insert("general.architecture".to_owned(), description.architecture.as_str().into());
    info.insert("general.parameter_count".to_owned(), description.parameters.into());
    if let Some(context) = description.context {
        info.entry(format!("{}.context_length", description.architecture)).or_insert(context.into());
    }
    info
}
