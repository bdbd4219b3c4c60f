//! Kernel packs of loaded models: list, replace while requests run, and take back. They need the scope `admin`.

use axum::Json;
use axum::extract::State;
use ruvllm_runtime::{Engine, KernelCandidate, KernelChoice, KernelPacks, KernelStatus, LoadedPack, OperationChoice};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Api;
use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

/// Packs to use.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelPackNames {
    /// Names of installed packs.
    #[schema(example = json!(["standard"]))]
    pub packs: Vec<String>,
    /// The model that uses them [default: all loaded ones]
    pub model: Option<String>,
    /// What decides where several kernels can compute the same [default: what the server was started with]
    pub choice: Option<ChoiceName>,
}

/// What decides between the kernels of packs and native ones.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChoiceName {
    /// The first pack that has a kernel.
    Always,
    /// What takes less time on this machine.
    Faster,
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
    models: Vec<ModelKernelPacks>,
}

/// The kernel packs of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelKernelPacks {
    model: String,
    /// None if all kernels are native.
    packs: Vec<PackAtWork>,
    /// `null` without packs.
    choice: Option<ChoiceName>,
    /// What computes each operation that packs may have kernels for. Without packs all are native.
    operations: Vec<OperationAtWork>,
    /// The kernels that were chosen.
    kernels: Vec<KernelAtWork>,
    /// How often packs were taken back because they failed or were slow.
    withdrawn: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PackAtWork {
    pack: String,
    version: String,
    digest: String,
    /// `null` if the pack is unsigned.
    signer: Option<String>,
    unsigned: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OperationAtWork {
    operation: String,
    /// What one call gets.
    numbers: usize,
    /// `native`, or the pack with its version and the kernel.
    chosen: String,
    why: String,
    candidates: Vec<Candidate>,
}

/// A kernel that can compute an operation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Candidate {
    kernel: String,
    /// Time of a call; `null` if it was not measured.
    ns: Option<f64>,
    /// How often it was measured on machines like this one.
    measured: u32,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KernelAtWork {
    /// With its version.
    pack: String,
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
        Some(ModelKernelPacks::of(model.name.to_string(), engine))
    });
    Json(KernelPackList { models: models.collect() })
}

/// Use installed kernel packs from the next step on
///
/// They are verified, compiled and compared with the reference on the model's shapes first. What was used before is kept for 300
/// seconds, and comes back by itself if one fails or is slow.
#[utoipa::path(post, path = "/v1/kernels/load", tag = "admin", request_body = KernelPackNames,
    responses((status = 200, description = "They are used", body = KernelPackList),
              (status = 400, description = "One cannot be used", body = ErrorBody),
              (status = 403, description = "The key has not the scope admin", body = ErrorBody),
              (status = 404, description = "The model is not loaded", body = ErrorBody)))]
async fn load_kernel_pack(
    State(api): State<Api>,
    Body(KernelPackNames { packs, model, choice }): Body<KernelPackNames>,
) -> Result<Json<KernelPackList>, ApiError> {
    if !(1..=KernelPacks::PACKS_MAX).contains(&packs.len()) {
        let problem = format!("must name 1 to {} packs; /v1/kernels/unload uses none", KernelPacks::PACKS_MAX);
        return Err(ApiError::invalid_param("packs", problem));
    }
    api.models.set_kernel_packs(model.as_deref(), packs, choice.map(KernelChoice::from)).await?;
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
    api.models.set_kernel_packs(model.as_deref(), Vec::new(), None).await?;
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

impl ModelKernelPacks {
    fn of(model: String, engine: &Engine) -> Self {
        let withdrawn = engine.kernel_packs().withdrawn();
        let Some(status) = engine.kernel_packs().status() else {
            let (packs, operations, kernels) = Default::default();
            return Self { model, packs, choice: None, operations, kernels, withdrawn };
        };
        Self {
            model,
            packs: status.packs.iter().map(|pack| PackAtWork::of(pack)).collect(),
            choice: Some(status.choice.into()),
            operations: status.operations.into_iter().map(OperationAtWork::of).collect(),
            kernels: status.kernels.iter().map(KernelAtWork::of).collect(),
            withdrawn,
        }
    }
}

impl PackAtWork {
    fn of(pack: &LoadedPack) -> Self {
        Self {
            pack: pack.name.clone(),
            version: pack.version.to_string(),
            digest: pack.digest.clone(),
            signer: pack.signer.map(|key| key.to_string()),
            unsigned: pack.signer.is_none(),
        }
    }
}

impl OperationAtWork {
    fn of(choice: OperationChoice) -> Self {
        let candidate = |candidate: &KernelCandidate| Candidate {
            kernel: candidate.kernel.clone(),
            ns: candidate.timing.map(|timing| timing.ns),
            measured: candidate.timing.map_or(0, |timing| timing.measured),
        };
        Self {
            operation: choice.category.to_string(),
            numbers: choice.numbers,
            chosen: choice.chosen().kernel.clone(),
            candidates: choice.candidates.iter().map(candidate).collect(),
            why: choice.why,
        }
    }
}

impl From<ChoiceName> for KernelChoice {
    fn from(name: ChoiceName) -> Self {
        match name {
            ChoiceName::Always => Self::Always,
            ChoiceName::Faster => Self::Faster,
        }
    }
}

impl From<KernelChoice> for ChoiceName {
    fn from(choice: KernelChoice) -> Self {
        match choice {
            KernelChoice::Always => Self::Always,
            KernelChoice::Faster => Self::Faster,
        }
    }
}

impl KernelAtWork {
    fn of(status: &KernelStatus) -> Self {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            pack: status.pack.clone(),
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
