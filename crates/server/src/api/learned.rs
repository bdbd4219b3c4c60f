//! `/admin/learn/…`: the versions that were learned, and which one a scope is served with.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_memory::{LearnedScope, LearningStore, MemoryError, check_user};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Caller;
use crate::api::Api;
use crate::api::params::Params;
use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

/// Returns the endpoints of operators.
pub(super) fn admin_router(api: Api) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(versions))
        .routes(routes!(promote))
        .routes(routes!(roll_back))
        .routes(routes!(reset))
        .with_state(api)
}

/// Whose learning is meant.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScopeFields {
    /// Name of the model.
    #[schema(example = "smollm2")]
    #[param(example = "smollm2")]
    model: String,
    /// Local users without one.
    tenant: Option<String>,
    /// One end user; otherwise all of the tenant together.
    user: Option<String>,
}

/// A version, and whose it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromoteRequest {
    model: String,
    tenant: Option<String>,
    user: Option<String>,
    /// Its number.
    version: i64,
    /// Also one that the gate has refused.
    #[serde(default)]
    force: bool,
}

impl ScopeFields {
    fn scope(self) -> Result<LearnedScope, ApiError> {
        let Self { model, tenant, user } = self;
        if let Some(user) = &user {
            check_user(user)?;
        }
        Ok(LearnedScope { tenant: tenant.unwrap_or_default(), user, model })
    }
}

/// List the versions that were learned, and which one is served
#[utoipa::path(get, path = "/admin/learn/versions", tag = "admin", params(ScopeFields),
    responses((status = 200, description = "All versions with their figures; `served.version` 0 is the model alone",
               body = Object),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
async fn versions(State(api): State<Api>, Params(fields): Params<ScopeFields>) -> Result<Json<Value>, ApiError> {
    let scope = fields.scope()?;
    let found = api.with_memory(move |memory| {
        let learning = memory.learning();
        Ok(json!({
            "served": learning.scope_state(&scope)?,
            "versions": learning.versions(&scope)?,
            "scope": scope,
        }))
    });
    Ok(Json(found.await?))
}

/// Serve a version that was learned
#[utoipa::path(post, path = "/admin/learn/promote", tag = "admin", request_body = PromoteRequest,
    responses((status = 200, description = "What is served from now on", body = Object),
              (status = 400, description = "The gate has refused it, or a field is invalid", body = ErrorBody),
              (status = 404, description = "There is no such version", body = ErrorBody)))]
async fn promote(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<PromoteRequest>,
) -> Result<Json<Value>, ApiError> {
    let PromoteRequest { model, tenant, user, version, force } = request;
    let scope = ScopeFields { model, tenant, user }.scope()?;
    api.change_served(&caller, scope, move |learning, scope, by| learning.promote(scope, version, force, by)).await
}

/// Serve what was served before
#[utoipa::path(post, path = "/admin/learn/rollback", tag = "admin", request_body = ScopeFields,
    responses((status = 200, description = "What is served from now on", body = Object),
              (status = 400, description = "Nothing was served before", body = ErrorBody)))]
async fn roll_back(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(fields): Body<ScopeFields>,
) -> Result<Json<Value>, ApiError> {
    let scope = fields.scope()?;
    api.change_served(&caller, scope, |learning, scope, by| learning.roll_back(scope, by).map(drop)).await
}

/// Serve the model alone
#[utoipa::path(post, path = "/admin/learn/reset", tag = "admin", request_body = ScopeFields,
    responses((status = 200, description = "What is served from now on", body = Object),
              (status = 400, description = "The model alone is served already", body = ErrorBody)))]
async fn reset(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(fields): Body<ScopeFields>,
) -> Result<Json<Value>, ApiError> {
    let scope = fields.scope()?;
    api.change_served(&caller, scope, |learning, scope, by| learning.reset(scope, by)).await
}

impl Api {
    /// Changes what a scope is served with, and answers with that from now on.
    async fn change_served(
        &self,
        caller: &Caller,
        scope: LearnedScope,
        change: impl FnOnce(LearningStore<'_>, &LearnedScope, &str) -> Result<(), MemoryError> + Send + 'static,
    ) -> Result<Json<Value>, ApiError> {
        let (models, written_by) = (Arc::clone(&self.models), caller.request.as_str().to_owned());
        let changed = self.with_memory(move |memory| {
            change(memory.learning(), &scope, &written_by)?;
            models.refresh_learned(memory)?;
            Ok(json!({ "served": memory.learning().scope_state(&scope)?, "scope": scope }))
        });
        Ok(Json(changed.await?))
    }
}
