//! Adapters over HTTP: vLLM's endpoints, which load and unload them, and llama-server's, which list and scale them.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Caller;
use crate::api::Api;
use crate::api::adapter_fields::{LoraScale, numbered};
use crate::body::{Body, ListBody};
use crate::error::ApiError;
use crate::models::{AdapterOrder, ServedAdapter};
use crate::openapi::ErrorBody;

/// An adapter to load.
#[derive(Debug, Deserialize, ToSchema)]
pub struct LoadLoraRequest {
    /// Requests name it in `model`, alone or as `BASE:NAME`.
    #[schema(example = "legal")]
    pub lora_name: String,
    /// The name of an adapter in the store, or a path below a folder of `serve --adapter-folder`.
    #[schema(example = "legal")]
    pub lora_path: String,
    /// Whether an adapter of this name is replaced. Answers that have begun with the old one end with it.
    pub load_inplace: Option<bool>,
    /// The model that it changes, if several are served.
    pub model: Option<String>,
}

/// An adapter to unload.
#[derive(Debug, Deserialize, ToSchema)]
pub struct UnloadLoraRequest {
    #[schema(example = "legal")]
    pub lora_name: String,
    /// The model that it changes, if several have one of this name.
    pub model: Option<String>,
}

/// An adapter, as llama-server lists it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoraEntry {
    /// Names it in `lora` of requests.
    id: u32,
    name: String,
    /// The model that it changes.
    model: String,
    /// The name of its file or folder.
    path: String,
    /// How much of it is used for requests that name no adapter.
    scale: f32,
    rank: usize,
    /// Of its content.
    digest: String,
    task_name: &'static str,
    prompt_prefix: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Success {
    success: bool,
}

/// Returns the endpoints that need the scope `admin`.
pub(crate) fn admin_router(api: Api) -> OpenApiRouter {
    let router = OpenApiRouter::new().routes(routes!(load_lora_adapter)).routes(routes!(unload_lora_adapter));
    router.routes(routes!(set_lora_adapters)).with_state(api)
}

/// Load an adapter for requests
///
/// It belongs to the tenant of the key that loads it, or to all if the key has none.
#[utoipa::path(post, path = "/v1/load_lora_adapter", tag = "adapters", request_body = LoadLoraRequest,
    responses((status = 200, description = "It can be requested", content_type = "text/plain", body = String),
              (status = 400, description = "It cannot be loaded, or its name is taken", body = ErrorBody),
              (status = 403, description = "The key has not the scope admin", body = ErrorBody),
              (status = 404, description = "There is no such adapter or model", body = ErrorBody)))]
async fn load_lora_adapter(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<LoadLoraRequest>,
) -> Result<String, ApiError> {
    request.check()?;
    let LoadLoraRequest { lora_name, lora_path, load_inplace, model } = request;
    let source = api.models.allowed_adapter(&lora_path).await?;
    let order = AdapterOrder {
        name: lora_name.clone(),
        model,
        source,
        owner: caller.owner.clone(),
        may_replace: load_inplace.unwrap_or(false),
    };
    api.models.load_adapter(order).await?;
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully."))
}

/// Unload an adapter; answers that have begun with it end with it
#[utoipa::path(post, path = "/v1/unload_lora_adapter", tag = "adapters", request_body = UnloadLoraRequest,
    responses((status = 200, description = "It cannot be requested any more", content_type = "text/plain", body = String),
              (status = 403, description = "The key has not the scope admin", body = ErrorBody),
              (status = 404, description = "There is no such adapter", body = ErrorBody)))]
async fn unload_lora_adapter(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(UnloadLoraRequest { lora_name, model }): Body<UnloadLoraRequest>,
) -> Result<String, ApiError> {
    api.models.unload_adapter(&lora_name, model.as_deref(), caller.owner.as_deref())?;
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}

/// List the adapters, with the numbers that `lora` of a request names
#[utoipa::path(get, path = "/lora-adapters", tag = "adapters",
    responses((status = 200, description = "Those that the caller's tenant may use", body = Vec<LoraEntry>)))]
pub(crate) async fn list_lora_adapters(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<LoraEntry>> {
    let entry = |(adapter, scale): (std::sync::Arc<ServedAdapter>, f32)| LoraEntry::of(&adapter, scale);
    Json(api.models.scaled_adapters(&caller.tenant).into_iter().map(entry).collect())
}

/// Set how much of each adapter is used for requests that name none
///
/// Those that are not named are not used. At first none is. The key of a tenant sets this for the tenant's own adapters.
#[utoipa::path(post, path = "/lora-adapters", tag = "adapters", request_body = Vec<LoraScale>,
    responses((status = 200, description = "It holds from the next request on", body = Success),
              (status = 400, description = "A scale is invalid", body = ErrorBody),
              (status = 403, description = "The key has not the scope admin", body = ErrorBody),
              (status = 404, description = "There is no adapter of this number", body = ErrorBody)))]
async fn set_lora_adapters(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    ListBody(scales): ListBody<LoraScale>,
) -> Result<Json<Success>, ApiError> {
    let used = numbered("scale", &scales)?;
    let known = api.models.visible_adapters(&caller.tenant);
    for LoraScale { id, .. } in &scales {
        let Some(adapter) = known.iter().find(|adapter| adapter.number == *id) else {
            let message = format!("there is no adapter with the id {id}; GET /lora-adapters lists them");
            return Err(ApiError::not_found(message).with_param("id").with_code("adapter_not_found"));
        };
        if adapter.owner != caller.owner {
            let message =
                format!("the adapter with the id {id} is for all; a key without a tenant sets how it is used");
            return Err(ApiError::invalid_param("id", message));
        }
    }
    api.models.set_adapter_scales(caller.owner.as_deref(), &used);
    Ok(Json(Success { success: true }))
}

impl LoadLoraRequest {
    /// Checks what can be checked without models.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let fields = [("lora_name", &self.lora_name), ("lora_path", &self.lora_path)];
        match fields.into_iter().find(|(_, value)| value.is_empty() || value.len() > 4096) {
            Some((field, _)) => Err(ApiError::invalid_param(field, format!("{field} must have 1 to 4096 bytes"))),
            None => Ok(()),
        }
    }
}

impl LoraEntry {
    fn of(adapter: &ServedAdapter, scale: f32) -> Self {
        Self {
            id: adapter.number,
            name: adapter.name.to_string(),
            model: adapter.base.to_string(),
            path: adapter.file_name(),
            scale,
            rank: adapter.rank,
            digest: adapter.digest(),
            task_name: "",
            prompt_prefix: "",
        }
    }
}
