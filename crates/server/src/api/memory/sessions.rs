//! `/v1/sessions`: stored conversations.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use ruvllm_memory::{MemoryError, Session, SessionQuery, SessionSummary as Stored};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{tenant_of, visible};
use crate::access::Caller;
use crate::api::Api;
use crate::api::params::Params;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

const COUNT_DEFAULT: usize = 100;
const COUNT_MAX: usize = 1000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Administrators may name one; others see their own.
    tenant: Option<String>,
    /// End user who began them.
    user: Option<String>,
    /// 100 by default, at most 1000.
    limit: Option<usize>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TenantParam {
    /// Administrators may name one; the caller's by default.
    tenant: Option<String>,
}

/// A session without its messages.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionSummary {
    name: String,
    tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<String>,
    turns: u64,
    messages: usize,
    /// As stored.
    bytes: usize,
    created_ms: i64,
    active_ms: i64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionList {
    /// `list`
    object: &'static str,
    data: Vec<SessionSummary>,
}

/// List sessions, the most recent first
#[utoipa::path(get, path = "/v1/sessions", tag = "memory", params(ListParams),
    responses((status = 200, description = "Sessions", body = SessionList),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
pub(crate) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ListParams>,
) -> Result<Json<SessionList>, ApiError> {
    let count_max = params.limit.unwrap_or(COUNT_DEFAULT);
    if !(1..=COUNT_MAX).contains(&count_max) {
        return Err(ApiError::invalid_param("limit", format!("limit must be from 1 to {COUNT_MAX}")));
    }
    let tenant = visible(&caller, params.tenant.as_deref())?;
    let query = SessionQuery { tenant, user: params.user, count_max, ..SessionQuery::default() };
    let sessions = api.with_memory(move |memory| memory.sessions().list(&query)).await?;
    Ok(Json(SessionList { object: "list", data: sessions.into_iter().map(Into::into).collect() }))
}

impl From<Stored> for SessionSummary {
    fn from(session: Stored) -> Self {
        let Stored { name, tenant, user, model, adapter, turns, messages, bytes, created_ms, active_ms, .. } = session;
        Self { name, tenant, user, model, adapter, turns, messages, bytes, created_ms, active_ms }
    }
}

/// Show a session with its conversation
#[utoipa::path(get, path = "/v1/sessions/{name}", tag = "memory", params(("name" = String, Path), TenantParam),
    responses((status = 200, description = "The session", body = Object),
              (status = 404, description = "There is no such session", body = ErrorBody)))]
pub(crate) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Params(params): Params<TenantParam>,
) -> Result<Json<Session>, ApiError> {
    let tenant = tenant_of(&caller, params.tenant)?;
    let recorder = api.remembering()?.recorder().clone();
    // With turns that are not written yet.
    let session = api.with_memory(move |_| recorder.session(&tenant, &name)?.ok_or_else(|| missing(name))).await?;
    Ok(Json(session))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deleted {
    deleted: bool,
}

/// Delete a session
#[utoipa::path(delete, path = "/v1/sessions/{name}", tag = "memory", params(("name" = String, Path), TenantParam),
    responses((status = 200, description = "The session is deleted", body = Deleted),
              (status = 404, description = "There is no such session", body = ErrorBody)))]
pub(crate) async fn remove(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Params(params): Params<TenantParam>,
) -> Result<Json<Deleted>, ApiError> {
    let tenant = tenant_of(&caller, params.tenant)?;
    let recorder = api.remembering()?.recorder().clone();
    let removed = api.with_memory(move |memory| {
        // Unwritten turns would bring it back.
        if !recorder.flush() {
            return Err(MemoryError::Unavailable("turns are waiting to be written".into()));
        }
        if memory.sessions().remove(&tenant, &name)? { Ok(()) } else { Err(missing(name)) }
    });
    removed.await?;
    Ok(Json(Deleted { deleted: true }))
}

fn missing(name: String) -> MemoryError {
    MemoryError::NotFound { kind: "session", name, is_tenants: true }
}
