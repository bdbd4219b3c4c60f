//! `/v1/policies`: parameters that apply where a request leaves them unset.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use ruvllm_memory::{MemoryError, Policy, PolicySource};
use ruvllm_runtime::check_policy;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::tenant_of;
use crate::access::{Caller, Scope};
use crate::api::Api;
use crate::api::params::Params;
use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PolicyParams {
    /// Administrators may name one; the caller's by default.
    tenant: Option<String>,
    /// Such as `router`.
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TenantParam {
    /// Administrators may name one; the caller's by default. Policies of the empty tenant apply to all.
    tenant: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyBody {
    /// An object; for a router: `temperature`, `top_p` and `max_tokens` for requests that leave them unset.
    #[schema(value_type = Object)]
    pub(crate) parameters: Value,
    /// Description: searching the memory finds the policy by it.
    about: Option<String>,
    /// From 0 to 1; 1 by default.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) confidence: Option<f64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PolicyList {
    /// `list`
    object: &'static str,
    #[schema(value_type = Vec<Object>)]
    data: Vec<Policy>,
}

/// List the policies that apply to a tenant, with built-in ones
#[utoipa::path(get, path = "/v1/policies", tag = "memory", params(PolicyParams),
    responses((status = 200, description = "Policies", body = PolicyList),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
pub(crate) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<PolicyParams>,
) -> Result<Json<PolicyList>, ApiError> {
    let tenant = tenant_of(&caller, params.tenant)?;
    let policies = api.with_memory(move |memory| memory.policies().in_force(&tenant)).await?;
    let is_asked = |policy: &&Policy| params.kind.as_ref().is_none_or(|kind| policy.kind == *kind);
    Ok(Json(PolicyList { object: "list", data: policies.values().filter(is_asked).cloned().collect() }))
}

/// Show a policy
#[utoipa::path(get, path = "/v1/policies/{type}/{name}", tag = "memory",
    params(("type" = String, Path), ("name" = String, Path), TenantParam),
    responses((status = 200, description = "The policy", body = Object),
              (status = 404, description = "There is no such policy", body = ErrorBody)))]
pub(crate) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path((kind, name)): Path<(String, String)>,
    Params(params): Params<TenantParam>,
) -> Result<Json<Policy>, ApiError> {
    let tenant = tenant_of(&caller, params.tenant)?;
    let policies = api.with_memory(move |memory| memory.policies().in_force(&tenant)).await?;
    let key = (kind, name);
    Ok(Json(policies.get(&key).cloned().ok_or_else(|| missing(&key.0, &key.1))?))
}

/// Set a policy. Those of the default tenant apply to all, so they need the scope admin
#[utoipa::path(put, path = "/v1/policies/{type}/{name}", tag = "memory", request_body = PolicyBody,
    params(("type" = String, Path), ("name" = String, Path), TenantParam),
    responses((status = 200, description = "The policy is in effect", body = Object),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 403, description = "The key does not allow this", body = ErrorBody)))]
pub(crate) async fn put(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path((kind, name)): Path<(String, String)>,
    Params(params): Params<TenantParam>,
    Body(body): Body<PolicyBody>,
) -> Result<Json<Policy>, ApiError> {
    let tenant = changeable(&caller, params.tenant)?;
    let policy = Policy {
        tenant,
        confidence: body.confidence.unwrap_or(1.0),
        source: PolicySource::Manual,
        ..Policy::new(&kind, &name, body.parameters)
    };
    check_policy(&policy)?;
    let about = match &body.about {
        Some(text) => Some(api.vector(&caller, "about", text).await?),
        None => None,
    };
    let stored = api.with_memory(move |memory| {
        memory.policies().put(&policy, about.as_deref())?;
        let policies = memory.policies().in_force(&policy.tenant)?;
        policies.get(&(kind, name)).cloned().ok_or_else(|| missing(&policy.kind, &policy.name))
    });
    Ok(Json(stored.await?))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deleted {
    deleted: bool,
}

/// Remove a policy; a built-in one of the same name takes effect again
#[utoipa::path(delete, path = "/v1/policies/{type}/{name}", tag = "memory",
    params(("type" = String, Path), ("name" = String, Path), TenantParam),
    responses((status = 200, description = "The policy is removed", body = Deleted),
              (status = 403, description = "The key does not allow this", body = ErrorBody),
              (status = 404, description = "There is no such policy", body = ErrorBody)))]
pub(crate) async fn remove(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path((kind, name)): Path<(String, String)>,
    Params(params): Params<TenantParam>,
) -> Result<Json<Deleted>, ApiError> {
    let tenant = changeable(&caller, params.tenant)?;
    let removed = api.with_memory(move |memory| {
        if memory.policies().remove(&tenant, &kind, &name)? { Ok(()) } else { Err(missing(&kind, &name)) }
    });
    removed.await?;
    Ok(Json(Deleted { deleted: true }))
}

/// Returns the tenant whose policies are changed.
fn changeable(caller: &Caller, asked: Option<String>) -> Result<String, ApiError> {
    let tenant = tenant_of(caller, asked)?;
    if tenant.is_empty() {
        caller.require(Scope::Admin)?;
    }
    Ok(tenant)
}

fn missing(kind: &str, name: &str) -> MemoryError {
    MemoryError::NotFound { kind: "policy", name: format!("{kind}/{name}"), is_tenants: true }
}
