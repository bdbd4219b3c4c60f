//! Kernel packs of loaded models: list, replace while requests run, and take back. They need the scope `admin`.

use axum::Json;
use axum::extract::State;
use ruvllm_runtime::{Engine, KernelStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Api;
use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

/// A pack to use.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelPackName {
    /// Name of an installed pack.
    #[schema(example = "standard")]
    pub pack: String,
    /// The model that uses it [default: all loaded ones]
    pub model: Option<String>,
}

/// The models that are meant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelPackUsers {
    /// [default: all loaded ones]
    pub model: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KernelPackList {
    models: Vec<ModelKernelPack>,
}

/// The kernel pack of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelKernelPack {
    model: String,
    /// `null` if all kernels are native.
    pack: Option<String>,
    version: Option<String>,
    digest: Option<String>,
    /// `null` also if the pack is unsigned.
    signer: Option<String>,
    unsigned: bool,
    kernels: Vec<KernelAtWork>,
    /// How often a pack was taken back because it failed or was slow.
    withdrawn: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KernelAtWork {
    id: String,
    category: String,
    calls: u64,
    /// Calls that were computed natively instead.
    failed: u64,
    /// After three failures.
    disabled: bool,
    last_fault: Option<String>,
    /// Of the calls that were compared with the native kernel, the fastest.
    pack_ns: Option<u64>,
    native_ns: Option<u64>,
}

/// Returns the endpoints that need the scope `admin`.
pub(crate) fn admin_router(api: Api) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(kernel_packs))
        .routes(routes!(load_kernel_pack))
        .routes(routes!(unload_kernel_pack))
        .routes(routes!(rollback_kernel_pack))
        .with_state(api)
}

/// List the kernel packs that models use, with what became of their kernels
#[utoipa::path(get, path = "/v1/kernels", tag = "admin",
    responses((status = 200, description = "Each loaded model", body = KernelPackList)))]
async fn kernel_packs(State(api): State<Api>) -> Json<KernelPackList> {
    let loaded = api.models.all_loaded();
    let models = loaded.iter().filter_map(|model| {
        let engine = model.runner.generator()?;
        Some(ModelKernelPack::of(model.name.to_string(), engine))
    });
    Json(KernelPackList { models: models.collect() })
}

/// Use an installed kernel pack from the next step on
///
/// It is verified, compiled and compared with the reference on the model's shapes first. The pack before it is kept for 300
/// seconds, and comes back by itself if the new one fails or is slow.
#[utoipa::path(post, path = "/v1/kernels/load", tag = "admin", request_body = KernelPackName,
    responses((status = 200, description = "It is used", body = KernelPackList),
              (status = 400, description = "It cannot be used", body = ErrorBody),
              (status = 403, description = "The key has not the scope admin", body = ErrorBody),
              (status = 404, description = "The model is not loaded", body = ErrorBody)))]
async fn load_kernel_pack(
    State(api): State<Api>,
    Body(KernelPackName { pack, model }): Body<KernelPackName>,
) -> Result<Json<KernelPackList>, ApiError> {
    api.models.set_kernel_pack(model.as_deref(), Some(pack)).await?;
    Ok(kernel_packs(State(api)).await)
}

/// Use the native kernels from the next step on
#[utoipa::path(post, path = "/v1/kernels/unload", tag = "admin", request_body = KernelPackUsers,
    responses((status = 200, description = "No pack is used", body = KernelPackList),
              (status = 403, description = "The key has not the scope admin", body = ErrorBody),
              (status = 404, description = "The model is not loaded", body = ErrorBody)))]
async fn unload_kernel_pack(
    State(api): State<Api>,
    Body(KernelPackUsers { model }): Body<KernelPackUsers>,
) -> Result<Json<KernelPackList>, ApiError> {
    api.models.set_kernel_pack(model.as_deref(), None).await?;
    Ok(kernel_packs(State(api)).await)
}

/// Go back to what was used before, up to 300 seconds after a change
#[utoipa::path(post, path = "/v1/kernels/rollback", tag = "admin", request_body = KernelPackUsers,
    responses((status = 200, description = "What was used before is used again", body = KernelPackList),
              (status = 400, description = "There is nothing to go back to", body = ErrorBody),
              (status = 403, description = "The key has not the scope admin", body = ErrorBody),
              (status = 404, description = "The model is not loaded", body = ErrorBody)))]
async fn rollback_kernel_pack(
    State(api): State<Api>,
    Body(KernelPackUsers { model }): Body<KernelPackUsers>,
) -> Result<Json<KernelPackList>, ApiError> {
    api.models.rollback_kernel_pack(model.as_deref())?;
    Ok(kernel_packs(State(api)).await)
}

impl ModelKernelPack {
    fn of(model: String, engine: &Engine) -> Self {
        let status = engine.kernel_packs().status();
        let pack = status.as_ref().map(|status| &status.pack);
        Self {
            model,
            pack: pack.map(|pack| pack.name.clone()),
            version: pack.map(|pack| pack.version.to_string()),
            digest: pack.map(|pack| pack.digest.clone()),
            signer: pack.and_then(|pack| pack.signer).map(|key| key.to_string()),
            unsigned: pack.is_some_and(|pack| pack.signer.is_none()),
            kernels: status.iter().flat_map(|status| &status.kernels).map(KernelAtWork::of).collect(),
            withdrawn: engine.kernel_packs().withdrawn(),
        }
    }
}

impl KernelAtWork {
    fn of(status: &KernelStatus) -> Self {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            id: status.kernel.clone(),
            category: status.category.to_string(),
            calls: status.calls,
            failed: status.failed,
            disabled: status.is_disabled,
            last_fault: status.last_fault.as_ref().map(ToString::to_string),
            pack_ns: status.times.map(|(pack, _)| ns(pack)),
            native_ns: status.times.map(|(_, native)| ns(native)),
        }
    }
}
