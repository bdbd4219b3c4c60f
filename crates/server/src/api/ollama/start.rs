//! What both endpoints do before they answer: find the model, apply `keep_alive`, load or unload without an answer.

use ruvllm_runtime::Request;

use super::options::NAMES;
use super::timing::Clock;
use crate::access::Caller;
use crate::api::choice::NoModel;
use crate::api::generation::Generation;
use crate::api::keep_alive::{self, AfterAnswer, KeepAliveField};
use crate::api::{Api, failure, fields};
use crate::error::ApiError;
use crate::models::{AskedAdapters, KeepAlive, ModelError, ModelInUse};

/// Returns the model of this name, loaded if necessary, and how long that took.
pub(super) async fn find(api: &Api, caller: &Caller, name: &str) -> Result<(ModelInUse, Clock), ApiError> {
    let clock = Clock::start();
    let model = api.models.get_adapted(name, &AskedAdapters::Default, caller.asker()).await.map_err(unknown)?;
    Ok((model, clock.loaded()))
}

/// Returns the same for a request that is answered. Where a choice depends on it, `request` returns what a model without
/// settings of its own would get.
pub(super) async fn find_for(
    api: &Api,
    caller: &Caller,
    (name, adapters): (&str, &AskedAdapters),
    request: impl FnOnce() -> Result<Request, ApiError>,
) -> Result<(ModelInUse, Clock), ApiError> {
    let clock = Clock::start();
    let requests = if api.sees_request(name, caller) { vec![request()?] } else { Vec::new() };
    let model = api.model_for(name, adapters, caller, &requests).await.map_err(|error| match error {
        NoModel::Model(error) => unknown(error),
        NoModel::Request(error) => error,
    })?;
    Ok((model, clock.loaded()))
}

/// Clients look for these words.
pub(super) fn unknown(error: ModelError) -> ApiError {
    match error {
        ModelError::Unknown { name, known } => {
            let name: String = name.chars().take(128).collect();
            let message = format!("model {name:?} not found, try pulling it first; here are: {}", known.join(", "));
            ApiError::not_found(message).with_code("model_not_found")
        }
        error => error.into(),
    }
}

/// Starts answering.
pub(super) async fn start(
    api: &Api,
    caller: &Caller,
    model: ModelInUse,
    request: Request,
) -> Result<Generation, ApiError> {
    fields::note_context("options.num_ctx", request.context, model.runner.context(), caller.ignored())?;
    let generation = api.generate_with(model, caller, vec![request]).await;
    generation.map_err(|error| failure::renamed(error, &NAMES))
}

/// Loads a model, or unloads it if it is to be kept for no time. Returns the reason why the answer is empty.
pub(super) async fn load_only(
    api: &Api,
    caller: &Caller,
    name: &str,
    field: Option<&KeepAliveField>,
) -> Result<&'static str, ApiError> {
    let wanted = field.map(KeepAliveField::parse).transpose()?;
    let unloads = wanted == Some(KeepAlive::For(std::time::Duration::ZERO));
    if unloads && !api.models.is_loaded(name) {
        api.models.find_known(name).map_err(unknown)?;
        return Ok("unload");
    }
    let (model, _) = find(api, caller, name).await?;
    caller.note_model(&model.name);
    keep_alive::apply(field, &model, &api.models, caller)?;
    if !unloads {
        drop(AfterAnswer::new(&api.models, &model));
        return Ok("load");
    }
    drop(model);
    api.models.unload_what_expired().await;
    Ok(if api.models.is_loaded(name) { "load" } else { "unload" })
}
