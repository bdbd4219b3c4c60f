//! `/v1/memory`: one search across the whole memory, and its contents.

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_memory::{Item, Kind, MemoryStatus, Recalled};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::visible;
use crate::access::{Caller, Scope};
use crate::api::Api;
use crate::api::params::Params;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

const COUNT_DEFAULT: usize = 10;
const COUNT_MAX: usize = 1000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchParams {
    /// Search text.
    pub(crate) like: String,
    /// `request`, `answer`, `session` or `policy`; all by default.
    pub(crate) kind: Option<String>,
    /// Administrators may name one; others see their own.
    pub(crate) tenant: Option<String>,
    /// 10 by default, at most 1000.
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RecalledList {
    /// `list`
    object: &'static str,
    data: Vec<RecalledItem>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RecalledItem {
    pub(crate) id: i64,
    pub(crate) kind: &'static str,
    pub(crate) similarity: f32,
    #[schema(value_type = Object)]
    pub(crate) item: Value,
}

/// Search the memory by meaning
#[utoipa::path(get, path = "/v1/memory/search", tag = "memory", params(SearchParams),
    responses((status = 200, description = "The most similar first", body = RecalledList),
              (status = 400, description = "A parameter is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
pub(crate) async fn search(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<SearchParams>,
) -> Result<Json<RecalledList>, ApiError> {
    Ok(Json(RecalledList { object: "list", data: api.search_memory(&caller, params).await? }))
}

impl Api {
    /// Returns what is most similar to a text.
    pub(in crate::api) async fn search_memory(
        &self,
        caller: &Caller,
        params: SearchParams,
    ) -> Result<Vec<RecalledItem>, ApiError> {
        let tenant = visible(caller, params.tenant.as_deref())?;
        let count_max = params.limit.unwrap_or(COUNT_DEFAULT);
        if !(1..=COUNT_MAX).contains(&count_max) {
            return Err(ApiError::invalid_param("limit", format!("limit must be from 1 to {COUNT_MAX}")));
        }
        let kinds: Vec<Kind> = match params.kind.as_deref().map(Kind::from_name) {
            Some(Some(kind)) => vec![kind],
            Some(None) => {
                return Err(ApiError::invalid_param("kind", "kind must be request, answer, session or policy"));
            }
            None => Vec::new(),
        };
        let vector = self.vector(caller, "like", &params.like).await?;
        let found =
            self.with_memory(move |memory| memory.recall(&vector, &kinds, tenant.as_deref(), count_max)).await?;
        Ok(found.into_iter().map(Into::into).collect())
    }
}

impl From<Recalled> for RecalledItem {
    fn from(recalled: Recalled) -> Self {
        let Recalled { id, kind, similarity, item } = recalled;
        let item = match item {
            Item::Request(entry) => json!(entry),
            Item::Session(session) => json!(session),
            Item::Policy(policy) => json!(policy),
        };
        Self { id, kind: kind.name(), similarity, item }
    }
}

/// Contents and size of the memory; for administrators
#[utoipa::path(get, path = "/v1/memory", tag = "memory",
    responses((status = 200, description = "The contents", body = Object),
              (status = 403, description = "The key does not allow this", body = ErrorBody),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
pub(crate) async fn status(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Admin)?;
    let recorder = api.remembering()?.recorder().stats();
    let (status, index_bytes) = api.with_memory(|memory| Ok((memory.status()?, memory.index_bytes()))).await?;
    let MemoryStatus {
        place,
        encryption,
        bytes,
        embedding,
        dimension,
        entries,
        sessions,
        policies,
        trajectories,
        vectors,
        edges,
        ..
    } = status;
    Ok(Json(json!({
        "place": place, "encryption": encryption, "bytes": bytes, "index_bytes": index_bytes, "embedding": embedding, "dimension": dimension,
        "entries": entries, "sessions": sessions, "policies": policies, "trajectories": trajectories, "vectors": vectors, "edges": edges,
        "first_ms": status.first_ms, "last_ms": status.last_ms,
        "written": recorder.written, "overflowed": recorder.overflowed, "lost": recorder.lost,
        "waiting": recorder.waiting, "waiting_bytes": recorder.waiting_bytes,
        "waiting_bytes_max": recorder.waiting_bytes_max,
    })))
}
