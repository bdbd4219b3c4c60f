//! Endpoints of operators: list, load, unload and reload models, and inspect the cache. They need the scope `admin`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::{Api, adapters, feedback, fleet, kernels, learned};
use crate::body::Body;
use crate::error::ApiError;
use crate::memory_budget::MemoryReport;
use crate::models::LoadedModel;
use crate::openapi::ErrorBody;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoadedModels {
    models: Vec<LoadedModel>,
    memory: MemoryReport,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelName {
    /// Name in the store, or an alias.
    #[schema(example = "smollm2")]
    pub model: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Draining {
    /// That run or wait.
    requests: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CacheReport {
    models: Vec<ModelCache>,
}

/// The prefix cache of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelCache {
    model: String,
    budget_bytes: usize,
    used_bytes: usize,
    /// Size of the radix tree itself.
    bookkeeping_bytes: usize,
    /// Pages of 16 tokens in use, and those of them that are cached prefixes.
    pages: usize,
    cached_pages: usize,
    /// Of these, the filled ones, which KV events tell of.
    whole_pages: usize,
    evicted_pages: u64,
    /// Evicted pages that had to be computed again: many of them mean that the budget is too small.
    regretted_pages: u64,
    /// Pages that were demoted to a smaller format.
    cooled_pages: u64,
    disk: Option<DiskCache>,
    tenants: Vec<TenantLookups>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiskCache {
    bytes: u64,
    pages: usize,
    written_pages: u64,
    read_pages: u64,
    /// Pages that were not read because computing them was faster.
    skipped_pages: u64,
    damaged_files: u64,
}

/// Prefix look-ups of one tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TenantLookups {
    tenant: String,
    lookups: u64,
    full_hits: u64,
    partial_hits: u64,
    misses: u64,
    tokens: u64,
    tokens_saved: u64,
}

impl Api {
    /// Returns the endpoints of operators.
    pub fn admin_router(self) -> OpenApiRouter {
        OpenApiRouter::new()
            .routes(routes!(loaded_models))
            .routes(routes!(load_model))
            .routes(routes!(unload_model))
            .routes(routes!(reload_model))
            .routes(routes!(cache))
            .routes(routes!(drain))
            .with_state(self.clone())
            .merge(fleet::admin_router(self.clone()))
            .merge(feedback::admin_router(self.clone()))
            .merge(learned::admin_router(self.clone()))
            .merge(kernels::admin_router(self.clone()))
            .merge(adapters::admin_router(self))
    }
}

/// List loaded models and their activity
#[utoipa::path(get, path = "/admin/models", tag = "admin",
    responses((status = 200, description = "All loaded models", body = LoadedModels)))]
async fn loaded_models(State(api): State<Api>) -> Json<LoadedModels> {
    Json(LoadedModels { models: api.models.describe(), memory: api.models.memory() })
}

/// Load a model from the store
#[utoipa::path(post, path = "/admin/models/load", tag = "admin", request_body = ModelName,
    responses((status = 200, description = "The model is loaded", body = LoadedModels),
              (status = 404, description = "There is no such model", body = ErrorBody)))]
async fn load_model(
    State(api): State<Api>,
    Body(ModelName { model }): Body<ModelName>,
) -> Result<Json<LoadedModels>, ApiError> {
    api.models.get(&model).await?;
    Ok(loaded_models(State(api)).await)
}

/// Unload a model that was not named at the start; running answers are finished
#[utoipa::path(post, path = "/admin/models/unload", tag = "admin", request_body = ModelName,
    responses((status = 200, description = "The model is no longer loaded", body = LoadedModels),
              (status = 404, description = "The model is not loaded", body = ErrorBody),
              (status = 409, description = "The model was named when the server started", body = ErrorBody)))]
async fn unload_model(
    State(api): State<Api>,
    Body(ModelName { model }): Body<ModelName>,
) -> Result<Json<LoadedModels>, ApiError> {
    api.models.unload(&model).await?;
    Ok(loaded_models(State(api)).await)
}

/// Reload a model, for example after its file was replaced; running answers are finished by the old one
#[utoipa::path(post, path = "/admin/models/reload", tag = "admin", request_body = ModelName,
    responses((status = 200, description = "The model was reloaded", body = LoadedModels),
              (status = 404, description = "The model is not loaded", body = ErrorBody)))]
async fn reload_model(
    State(api): State<Api>,
    Body(ModelName { model }): Body<ModelName>,
) -> Result<Json<LoadedModels>, ApiError> {
    api.models.reload(&model).await?;
    Ok(loaded_models(State(api)).await)
}

/// End the server once running answers have, as SIGTERM does
#[utoipa::path(post, path = "/admin/drain", tag = "admin",
    responses((status = 202, description = "It will end", body = Draining)))]
async fn drain(State(api): State<Api>) -> (StatusCode, Json<Draining>) {
    tracing::info!("shutting down, as an operator asks: running answers may finish");
    let describe = |model: &LoadedModel| model.running + model.waiting;
    let requests = api.models.describe().iter().map(describe).sum();
    api.lifecycle.drain();
    (StatusCode::ACCEPTED, Json(Draining { requests }))
}

/// Show what the prefix caches hold and save, by tenant
#[utoipa::path(get, path = "/v1/cache", tag = "admin",
    responses((status = 200, description = "The cache of each loaded model", body = CacheReport)))]
async fn cache(State(api): State<Api>) -> Json<CacheReport> {
    let mut models = Vec::new();
    for model in api.models.all_loaded() {
        let Some(engine) = model.runner.generator() else { continue };
        let cache = engine.status().cache;
        // An engine that has failed knows no tenants.
        let tenants = engine.tenants().await.unwrap_or_default();
        models.push(ModelCache {
            model: model.name.to_string(),
            budget_bytes: cache.budget_bytes,
            used_bytes: cache.used_bytes,
            bookkeeping_bytes: cache.bookkeeping_bytes,
            pages: cache.pages,
            cached_pages: cache.cached_pages,
            whole_pages: cache.whole_pages,
            evicted_pages: cache.evicted_pages,
            regretted_pages: cache.regretted_pages,
            cooled_pages: cache.cooled_pages,
            disk: cache.disk.map(|disk| DiskCache {
                bytes: disk.bytes,
                pages: disk.pages,
                written_pages: disk.written,
                read_pages: disk.read,
                skipped_pages: disk.skipped,
                damaged_files: disk.damaged,
            }),
            tenants: tenants
                .into_iter()
                .map(|(tenant, lookups)| TenantLookups {
                    tenant: tenant.name().to_owned(),
                    lookups: lookups.lookups,
                    full_hits: lookups.full,
                    partial_hits: lookups.partial,
                    misses: lookups.misses,
                    tokens: lookups.tokens,
                    tokens_saved: lookups.tokens_saved,
                })
                .collect(),
        });
    }
    Json(CacheReport { models })
}
