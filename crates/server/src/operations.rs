//! Endpoints of operations. They are the pattern for all others: a function with its documentation, added to an
//! [`OpenApiRouter`] by `routes!`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::lifecycle::{Lifecycle, Phase};
use crate::metrics::{Metrics, Snapshots};
use crate::openapi::ErrorBody;

const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Serialize, ToSchema)]
struct Status {
    /// `ok`, `starting` or `draining`
    status: &'static str,
}

/// Returns `/health` and `/ready`, which are public.
pub(crate) fn probes(lifecycle: Lifecycle) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(root)).routes(routes!(health)).routes(routes!(ready)).with_state(lifecycle)
}

/// Whether there is a server: agents ask for it before they do anything else
#[utoipa::path(get, path = "/", tag = "operations", security(()),
    responses((status = 200, description = "There is", content_type = "text/plain", body = String)))]
async fn root() -> &'static str {
    // Clients of Ollama compare the text.
    "Ollama is running"
}

/// `/metrics`
pub(crate) fn metrics_route(metrics: Arc<Metrics>, snapshots: Snapshots) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(render_metrics)).with_state((metrics, snapshots))
}

/// Whether the process is alive
#[utoipa::path(get, path = "/health", tag = "operations", security(()),
    responses((status = 200, description = "It is alive", body = Status)))]
async fn health() -> Json<Status> {
    Json(Status { status: "ok" })
}

/// Whether requests can be answered: models are loaded, and the server is not shutting down
#[utoipa::path(get, path = "/ready", tag = "operations", security(()),
    responses((status = 200, description = "It is ready", body = Status),
              (status = 503, description = "It is starting or shutting down", body = Status)))]
async fn ready(State(lifecycle): State<Lifecycle>) -> Response {
    let (code, status) = match lifecycle.phase() {
        Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
        Phase::Ready => (StatusCode::OK, "ok"),
        Phase::Leaving | Phase::Draining | Phase::Ended => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
    };
    (code, Json(Status { status })).into_response()
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "operations",
    responses((status = 200, description = "Prometheus text", content_type = "text/plain", body = String),
              (status = 401, description = "No valid key", body = ErrorBody),
              (status = 403, description = "The key has neither the scope metrics nor admin", body = ErrorBody)))]
async fn render_metrics(State((metrics, snapshots)): State<(Arc<Metrics>, Snapshots)>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS_TEXT)], metrics.render(&snapshots())).into_response()
}
