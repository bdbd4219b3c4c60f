//! `POST /api/embed`, and `POST /api/embeddings` for one text as it was before.

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_runtime::{EmbedError, EmbedInput, EmbedRequest, Embeddings, TooLong};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::timing::Clock;
use super::{OllamaError, start};
use crate::access::Caller;
use crate::api::Api;
use crate::api::embeddings::embed as compute;
use crate::api::encoding::Failure;
use crate::api::keep_alive::{self, AfterAnswer, KeepAliveField};
use crate::body::Body;
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// Maximum number of texts per request.
const INPUTS_MAX: usize = 2048;

/// Texts to embed. Unknown parameters are ignored and named in the header `x-ruvllm-ignored`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbedBody {
    /// An embedding model; `GET /api/tags` lists all models.
    #[schema(example = "minilm")]
    pub model: String,
    /// Up to 2048 texts. Without any, the model is only loaded.
    pub input: Option<EmbedTexts>,
    /// Whether texts that are too long for the model are truncated, as by default, or refused.
    pub truncate: Option<bool>,
    /// Only the model's own number of dimensions is accepted.
    pub dimensions: Option<usize>,
    /// Has no effect on embeddings.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    pub keep_alive: Option<KeepAliveField>,
}

/// One text to embed.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OldEmbedBody {
    #[schema(example = "minilm")]
    pub model: String,
    pub prompt: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    pub keep_alive: Option<KeepAliveField>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub enum EmbedTexts {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbedResponse {
    model: String,
    /// Vectors of length 1, in the order of the texts.
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OldEmbedResponse {
    embedding: Vec<f32>,
}

/// Compute embeddings of texts
#[utoipa::path(post, path = "/api/embed", tag = "ollama", request_body = EmbedBody,
    responses((status = 200, description = "A vector of length 1 for each text", body = EmbedResponse),
              (status = 400, description = "A field is invalid", body = OllamaError),
              (status = 404, description = "There is no such model", body = OllamaError),
              (status = 429, description = "Too many requests", body = OllamaError)))]
pub(crate) async fn embed(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<EmbedBody>,
) -> Result<Json<EmbedResponse>, ApiError> {
    let work = body.work(caller.ignored())?;
    let (embeddings, clock) = vectors(&api, &caller, &body, work, "input").await?;
    Ok(Json(EmbedResponse {
        model: body.model,
        prompt_eval_count: embeddings.tokens.iter().sum(),
        embeddings: embeddings.vectors,
        total_duration: clock.total_ns(),
        load_duration: clock.load_ns(),
    }))
}

/// Compute the embedding of a text
#[utoipa::path(post, path = "/api/embeddings", tag = "ollama", request_body = OldEmbedBody,
    responses((status = 200, description = "A vector of length 1", body = OldEmbedResponse),
              (status = 400, description = "A field is invalid", body = OllamaError),
              (status = 404, description = "There is no such model", body = OllamaError),
              (status = 429, description = "Too many requests", body = OllamaError)))]
pub(crate) async fn embeddings(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<OldEmbedBody>,
) -> Result<Json<OldEmbedResponse>, ApiError> {
    let body = body.into_new();
    let work = body.work(caller.ignored())?;
    let (embeddings, _) = vectors(&api, &caller, &body, work, "prompt").await?;
    Ok(Json(OldEmbedResponse { embedding: embeddings.vectors.into_iter().next().unwrap_or_default() }))
}

impl OldEmbedBody {
    pub(crate) fn into_new(self) -> EmbedBody {
        let Self { model, prompt, options, keep_alive } = self;
        let input = prompt.map(EmbedTexts::One);
        EmbedBody { model, input, truncate: None, dimensions: None, options, keep_alive }
    }
}

impl EmbedBody {
    /// Converts the request for the encoder.
    pub(crate) fn work(&self, ignored: &IgnoredParams) -> Result<EmbedRequest, ApiError> {
        if let Some(keep_alive) = &self.keep_alive {
            keep_alive.parse()?;
        }
        for name in self.options.iter().flat_map(Map::keys) {
            ignored.note(&format!("options.{name}"), "it does not change embeddings")?;
        }
        let texts = match &self.input {
            None => &[][..],
            Some(EmbedTexts::One(text)) if text.is_empty() => &[],
            Some(EmbedTexts::One(text)) => std::slice::from_ref(text),
            Some(EmbedTexts::Several(texts)) => texts,
        };
        if texts.len() > INPUTS_MAX {
            let message = format!("input has {} texts; it may have up to {INPUTS_MAX}", texts.len());
            return Err(ApiError::invalid_param("input", message));
        }
        let too_long = if self.truncate.unwrap_or(true) { TooLong::CutEnd } else { TooLong::Refuse };
        let inputs = texts.iter().map(|text| EmbedInput::Text(text.clone())).collect();
        Ok(EmbedRequest { inputs, too_long, ..EmbedRequest::default() })
    }
}

/// Loads the model and computes. `field` is where the texts came from.
async fn vectors(
    api: &Api,
    caller: &Caller,
    body: &EmbedBody,
    work: EmbedRequest,
    field: &str,
) -> Result<(Embeddings, Clock), ApiError> {
    let (model, clock) = start::find(api, caller, &body.model).await?;
    let dimensions = model.encoder()?.dimensions();
    if let Some(wanted) = body.dimensions.filter(|wanted| *wanted != dimensions) {
        let message = format!("dimensions is {wanted}; this model supports only {dimensions}");
        return Err(ApiError::invalid_param("dimensions", message));
    }
    keep_alive::apply(body.keep_alive.as_ref(), &model, &api.models, caller)?;
    let after = AfterAnswer::new(&api.models, &model);
    let embeddings = if work.inputs.is_empty() {
        Embeddings::default()
    } else {
        compute(api, &model, caller, work).await.map_err(|failure| explain(failure, field))?
    };
    drop(model);
    drop(after);
    Ok((embeddings, clock))
}

fn explain(failure: Failure<EmbedError>, field: &str) -> ApiError {
    match failure {
        Failure::Other(error) => error,
        Failure::Model(error @ (EmbedError::Abandoned { .. } | EmbedError::Failed { .. })) => {
            tracing::error!("{error}");
            ApiError::internal("the texts could not be embedded")
        }
        Failure::Model(error) => ApiError::invalid_param(field, error.to_string()),
    }
}
