//! Ollama's native API, at `/api/`, beside the others on the same port.
//!
//! Answers are generated as for all other endpoints (`generation.rs`); here is the form: JSON objects, one per line
//! (`ndjson.rs`), times in nanoseconds, parameters in `options`. Endpoints that change the store need an administrator,
//! or a program on this machine where the operator allows it (`serve --ollama`).

mod answer;
mod changes;
mod chat;
mod embed;
mod fields;
mod generate;
mod listing;
pub(crate) mod messages;
mod modelfile;
mod ndjson;
pub(crate) mod options;
pub(crate) mod request;
mod response;
mod show;
mod stamp;
mod start;
mod timing;

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use self::changes::{CopyRequest, CreateRequest, DeleteRequest, PullRequest};
pub(crate) use self::embed::{EmbedBody, OldEmbedBody};
pub(crate) use self::show::ShowRequest;
use crate::api::Api;

/// The version of Ollama whose API this is. Clients parse three numbers and refuse versions that are too old.
const OLLAMA_VERSION: &str = "0.12.6";

/// An error in Ollama's format.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaError {
    error: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaVersion {
    /// The version of Ollama whose API this is.
    version: &'static str,
    /// The version of this server.
    ruvllm: &'static str,
}

/// Returns the endpoints. All need the scope `inference`; those that change the store require more by themselves.
pub(super) fn router(api: Api) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(version))
        .routes(routes!(listing::tags))
        .routes(routes!(listing::ps))
        .routes(routes!(show::show))
        .routes(routes!(chat::chat))
        .routes(routes!(generate::generate))
        .routes(routes!(embed::embed))
        .routes(routes!(embed::embeddings))
        .routes(routes!(changes::pull))
        .routes(routes!(changes::create))
        .routes(routes!(changes::copy))
        .routes(routes!(changes::delete))
        .with_state(api)
}

/// Tell which version of Ollama's API this is
#[utoipa::path(get, path = "/api/version", tag = "ollama",
    responses((status = 200, description = "The version", body = OllamaVersion)))]
async fn version() -> Json<OllamaVersion> {
    Json(OllamaVersion { version: OLLAMA_VERSION, ruvllm: env!("CARGO_PKG_VERSION") })
}
