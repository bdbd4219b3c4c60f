//! The services of gRPC: SGLang's protocol between routers and workers, our own, and those that all servers have.
//!
//! Requests become what the endpoints of HTTP make of theirs, and go the same way from there. The protocol itself is in
//! `crate::grpc`.

mod health;
mod own;
mod reflection;
mod running;
mod sglang;

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::Router;
use axum::routing::post;

use self::running::Running;
use super::Api;
use super::fields::{JsonSchemaField, ResponseFormat};
use crate::GrpcServices;
use crate::error::ApiError;

/// State of the services.
#[derive(Clone, Debug)]
struct Grpc {
    api: Api,
    running: Arc<Running>,
    /// Where routers find the tokenizer of the first generating model; empty if nowhere.
    tokenizer: Arc<str>,
    started: (Instant, SystemTime),
}

impl Api {
    /// Returns the services. `tokenizer` is the folder where routers find the tokenizer of the first generating model.
    pub fn grpc(&self, tokenizer: Option<&Path>) -> GrpcServices {
        let grpc = Grpc {
            api: self.clone(),
            running: Arc::default(),
            tokenizer: tokenizer.map_or_else(Default::default, |folder| folder.to_string_lossy().into()),
            started: (Instant::now(), SystemTime::now()),
        };
        let public = Router::new()
            .route("/sglang.grpc.scheduler.SglangScheduler/HealthCheck", post(sglang::health_check))
            .route("/grpc.health.v1.Health/Check", post(health::check))
            .route("/grpc.health.v1.Health/Watch", post(health::watch))
            .route("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", post(reflection::info))
            .route("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", post(reflection::info))
            .with_state(grpc.clone());
        let inference = Router::new()
            .route("/sglang.grpc.scheduler.SglangScheduler/Generate", post(sglang::generate::generate))
            .route("/sglang.grpc.scheduler.SglangScheduler/Embed", post(sglang::embed))
            .route("/sglang.grpc.scheduler.SglangScheduler/Abort", post(sglang::abort))
            .route("/sglang.grpc.scheduler.SglangScheduler/GetModelInfo", post(sglang::model_info))
            .route("/sglang.grpc.scheduler.SglangScheduler/GetServerInfo", post(sglang::server_info))
            .route("/sglang.grpc.scheduler.SglangScheduler/GetLoads", post(sglang::loads))
            .route("/ruvllm.v1.RuvLlm/Generate", post(own::generate::generate))
            .route("/ruvllm.v1.RuvLlm/Embed", post(own::embed))
            .route("/ruvllm.v1.RuvLlm/Feedback", post(own::feedback))
            .route("/ruvllm.v1.RuvLlm/SearchMemory", post(own::search_memory))
            .with_state(grpc);
        GrpcServices { public, inference }
    }
}

impl Grpc {
    /// Returns the model that requests mean which name none.
    fn generating(&self) -> Result<String, ApiError> {
        self.api.models.default_model().ok_or_else(|| ApiError::unavailable("no generating model is loaded", None))
    }

    /// Returns the embedding model that requests mean which name none.
    fn embedding(&self) -> Result<String, ApiError> {
        let loaded = self.api.models.all_loaded();
        let first = loaded.iter().find(|model| model.runner.encoder().is_some());
        let name = first.map(|model| model.name.to_string());
        name.ok_or_else(|| ApiError::not_found("no embedding model is loaded").with_code("model_not_found"))
    }
}

/// Converts a count for messages whose numbers are smaller.
fn small<T: TryFrom<usize>>(count: usize, max: T) -> T {
    T::try_from(count).unwrap_or(max)
}

/// Reads a schema that is JSON in a text.
fn json_schema(field: &str, text: &str) -> Result<ResponseFormat, ApiError> {
    let schema = serde_json::from_str(text);
    let schema = schema.map_err(|error| ApiError::invalid_param(field, format!("{field} is not JSON: {error}")))?;
    Ok(ResponseFormat::JsonSchema {
        json_schema: JsonSchemaField { name: None, description: None, schema, strict: None },
    })
}
