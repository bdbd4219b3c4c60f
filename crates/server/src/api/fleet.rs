//! The servers that share the memory of this one, for operators.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use ruvllm_memory::{SeenWorker, WorkerModel};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use crate::error::ApiError;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FleetReport {
    /// Whether the memory is one that several servers can use; without one, a server knows only itself.
    shared: bool,
    /// This server first, then the others of the last day, those that were seen last first.
    workers: Vec<FleetWorker>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FleetWorker {
    id: String,
    /// URL at which other machines reach it.
    address: String,
    version: String,
    /// Unix time in milliseconds.
    started_ms: i64,
    seen_ms: i64,
    /// Whether it was seen within half a minute. One that is not has ended without a word.
    alive: bool,
    /// Whether it is the server that answers.
    this: bool,
    models: Vec<FleetModel>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FleetModel {
    name: String,
    /// Identifies the file; empty for models that do not generate.
    fingerprint: String,
    running: usize,
    waiting: usize,
    kv_used_bytes: usize,
    kv_budget_bytes: usize,
    /// Prompt tokens, and those of them that were cached.
    prompt_tokens: u64,
    cached_tokens: u64,
}

pub(super) fn admin_router(api: Api) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(workers)).with_state(api)
}

/// List the servers that share the memory of this one
#[utoipa::path(get, path = "/admin/workers", tag = "admin",
    responses((status = 200, description = "All servers that were seen within a day", body = FleetReport)))]
async fn workers(State(api): State<Api>) -> Result<Json<FleetReport>, ApiError> {
    let fleet = Arc::clone(&api.fleet);
    let turn = match &api.memory {
        Some(memory) => memory.lookup_permit().await,
        None => None,
    };
    let found = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        fleet.workers()
    });
    let found = found.await;
    let found = found.map_err(|_| ApiError::internal("the memory failed"))??;
    let workers = found.into_iter().map(|seen| describe(seen, &api)).collect();
    Ok(Json(FleetReport { shared: api.fleet.is_shared(), workers }))
}

fn describe(SeenWorker { worker, seen_ms, is_alive }: SeenWorker, api: &Api) -> FleetWorker {
    let this = api.fleet.is_me(&worker);
    let model = |model: WorkerModel| FleetModel {
        name: model.name,
        fingerprint: model.fingerprint,
        running: model.running,
        waiting: model.waiting,
        kv_used_bytes: model.kv_used_bytes,
        kv_budget_bytes: model.kv_budget_bytes,
        prompt_tokens: model.prompt_tokens,
        cached_tokens: model.cached_tokens,
    };
    FleetWorker {
        id: worker.id,
        address: worker.address,
        version: worker.version,
        started_ms: worker.started_ms,
        seen_ms,
        alive: is_alive,
        this,
        models: worker.models.into_iter().map(model).collect(),
    }
}
