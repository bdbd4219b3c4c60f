//! Endpoints of the memory: a tenant sees its own entries; administrators see all.

pub(crate) mod policies;
pub(crate) mod search;
mod sessions;
mod witness;

use std::sync::Arc;

use ruvllm_memory::{Memory, MemoryError};
use ruvllm_runtime::{RequestRecorder, hidden_model};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Caller, Scope};
use crate::api::Api;
use crate::api::charges;
use crate::api::failure::MEMORY_RETRY;
use crate::error::ApiError;

/// Returns the endpoints. They need the scope `inference`, and `admin` for entries of other tenants.
pub(super) fn router(api: Api) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(witness::search))
        .routes(routes!(witness::stats))
        .routes(routes!(witness::verify))
        .routes(routes!(witness::show))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::show, sessions::remove))
        .routes(routes!(policies::list))
        .routes(routes!(policies::show, policies::put, policies::remove))
        .routes(routes!(search::search))
        .routes(routes!(search::status))
        .with_state(api)
}

impl Api {
    pub(super) fn remembering(&self) -> Result<&RequestRecorder, ApiError> {
        self.memory.as_ref().ok_or_else(|| {
            ApiError::not_found("this server has no memory: it was started with --no-memory").with_code("no_memory")
        })
    }

    /// Runs work on the memory in the background.
    pub(super) async fn with_memory<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Memory) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let remembering = self.remembering()?;
        let (memory, turn) = (Arc::clone(remembering.memory()), remembering.lookup_permit().await);
        let done = tokio::task::spawn_blocking(move || {
            // Held even if the client has disconnected.
            let _turn = turn;
            work(&memory)
        });
        let done = done.await;
        Ok(done.map_err(|_| ApiError::internal("the memory failed"))??)
    }

    /// Embeds the text of a field with the model of the stored embeddings.
    async fn vector(&self, caller: &Caller, field: &'static str, text: &str) -> Result<Vec<f32>, ApiError> {
        let remembering = self.remembering()?.clone();
        caller.charge(charges::of_text(text) as u64);
        let text = text.to_owned();
        let name = self.with_memory(|memory| memory.embeddings().name()).await?;
        let model = match name.as_deref().and_then(hidden_model) {
            Some(model) => Some(self.models.get(model).await?),
            None => None,
        };
        let engine = model.as_ref().map(|model| model.generator().cloned()).transpose()?;
        let turn = remembering.lookup_permit().await;
        let embedded = tokio::task::spawn_blocking(move || {
            // Held even if the client has disconnected.
            let _held = (turn, model);
            remembering.embed(&text, engine.as_ref())
        });
        let embedded = embedded.await.map_err(|_| ApiError::internal("the text could not be embedded"))?;
        embedded.map_err(|error| ApiError::invalid_param(field, error.to_string()))
    }
}

/// Returns the tenant whose entries a caller may see: `None` is all.
fn visible(caller: &Caller, asked: Option<&str>) -> Result<Option<String>, ApiError> {
    caller.require_known()?;
    let own = &*caller.tenant;
    match asked {
        None if caller.scopes.allow(Scope::Admin) => Ok(None),
        None => Ok(Some(own.to_owned())),
        Some(tenant) => owner(caller, Some(tenant)).map(|()| Some(tenant.to_owned())),
    }
}

/// Checks that a caller may access what belongs to a tenant.
fn owner(caller: &Caller, tenant: Option<&str>) -> Result<(), ApiError> {
    caller.require_known()?;
    match tenant {
        Some(tenant) if tenant != &*caller.tenant => caller.require(Scope::Admin),
        _ => Ok(()),
    }
}

/// Returns the tenant that is meant: the caller's, unless another is named.
fn tenant_of(caller: &Caller, asked: Option<String>) -> Result<String, ApiError> {
    owner(caller, asked.as_deref())?;
    Ok(asked.unwrap_or_else(|| caller.tenant.to_string()))
}

impl From<MemoryError> for ApiError {
    fn from(error: MemoryError) -> Self {
        let message = error.to_string();
        match error {
            MemoryError::Invalid { field, .. } => ApiError::invalid_param(field, message),
            MemoryError::NotFound { .. } => ApiError::not_found(message),
            MemoryError::Vector(_) => ApiError::invalid(message),
            _ if error.is_transient() => {
                tracing::warn!("{message}");
                ApiError::unavailable("the memory does not respond at the moment; try again later", Some(MEMORY_RETRY))
            }
            _ => {
                tracing::error!("{message}");
                // Details of the store are not for clients.
                ApiError::internal("the memory failed; see the server's log")
            }
        }
    }
}
