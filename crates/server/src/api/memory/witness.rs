//! `/v1/witness`: the log of answered requests.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use ruvllm_memory::{
    ErrorFilter, Found, MemoryError, Range, WitnessEntry, WitnessQuery, WitnessStats, now_ms, parse_span,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::visible;
use crate::access::{Caller, Scope};
use crate::api::Api;
use crate::api::params::Params;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

const COUNT_DEFAULT: usize = 20;
const COUNT_MAX: usize = 1000;
const BUCKETS_DEFAULT: usize = 24;
const BUCKETS_MAX: usize = 1000;

/// Filters of entries. All that are given must match.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WitnessParams {
    /// Search text; the most similar entries come first, otherwise the newest.
    like: Option<String>,
    /// Maximum age, such as `2d` or `36h`.
    since: Option<String>,
    /// Minimum age.
    until: Option<String>,
    /// Such as `<0.5` or `0.2..0.8`.
    quality: Option<String>,
    /// Total milliseconds, such as `>1000`.
    latency: Option<String>,
    /// `any`, `none`, or a kind of error such as `timeout`.
    error: Option<String>,
    model: Option<String>,
    session: Option<String>,
    /// End user.
    user: Option<String>,
    /// Administrators may name one; others see their own.
    tenant: Option<String>,
    /// Only entries before this one: the next page.
    before: Option<i64>,
    /// 20 by default, at most 1000.
    limit: Option<usize>,
    /// Number of equal time intervals of the statistics; 24 by default.
    buckets: Option<usize>,
}

impl WitnessParams {
    async fn query(self, api: &Api, caller: &Caller) -> Result<WitnessQuery, ApiError> {
        // Checked first: nothing is computed for a caller that may see nothing.
        let tenant = visible(caller, self.tenant.as_deref())?;
        let range = |field, text: Option<String>| text.map(|text| Range::parse(field, &text)).transpose();
        let ago = |field, text: Option<String>| {
            let span: Option<Duration> = text.map(|text| parse_span(field, &text)).transpose()?;
            Ok::<_, MemoryError>(span.map(|span| now_ms() - i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
        };
        let count_max = self.limit.unwrap_or(COUNT_DEFAULT);
        if !(1..=COUNT_MAX).contains(&count_max) {
            return Err(ApiError::invalid_param("limit", format!("limit must be from 1 to {COUNT_MAX}")));
        }
        let mut query = WitnessQuery {
            tenant,
            user: self.user,
            model: self.model,
            session: self.session,
            since_ms: ago("since", self.since)?,
            until_ms: ago("until", self.until)?,
            quality: range("quality", self.quality)?,
            latency_ms: range("latency", self.latency)?,
            error: self.error.map(|error| match error.as_str() {
                "any" => ErrorFilter::Any,
                "none" => ErrorFilter::None,
                _ => ErrorFilter::Kind(error),
            }),
            before: self.before,
            count_max,
            ..WitnessQuery::default()
        };
        if let Some(text) = self.like {
            query.like = Some(api.vector(caller, "like", &text).await?);
        }
        Ok(query)
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WitnessList {
    /// `list`
    object: &'static str,
    data: Vec<WitnessItem>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WitnessItem {
    id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    similarity: Option<f32>,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    entry: WitnessEntry,
}

impl From<Found> for WitnessItem {
    fn from(found: Found) -> Self {
        Self { id: found.id, similarity: found.similarity, entry: found.entry }
    }
}

/// Search the witness log
#[utoipa::path(get, path = "/v1/witness", tag = "memory", params(WitnessParams),
    responses((status = 200, description = "Entries, the newest or the most similar first", body = WitnessList),
              (status = 400, description = "A parameter is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
pub(crate) async fn search(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<WitnessParams>,
) -> Result<Json<WitnessList>, ApiError> {
    let query = params.query(&api, &caller).await?;
    let found = api.with_memory(move |memory| memory.witness().search(&query)).await?;
    Ok(Json(WitnessList { object: "list", data: found.into_iter().map(Into::into).collect() }))
}

/// Statistics of the witness log: quality, latency and tokens, by model and over time
#[utoipa::path(get, path = "/v1/witness/stats", tag = "memory", params(WitnessParams),
    responses((status = 200, description = "Figures", body = Object),
              (status = 400, description = "A parameter is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
pub(crate) async fn stats(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<WitnessParams>,
) -> Result<Json<WitnessStats>, ApiError> {
    let buckets = params.buckets.unwrap_or(BUCKETS_DEFAULT);
    if !(1..=BUCKETS_MAX).contains(&buckets) {
        return Err(ApiError::invalid_param("buckets", format!("buckets must be from 1 to {BUCKETS_MAX}")));
    }
    let query = params.query(&api, &caller).await?;
    Ok(Json(api.with_memory(move |memory| memory.witness().stats(&query, buckets)).await?))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Verification {
    sound: bool,
    batches: u64,
    entries: u64,
    /// Embeddings that were compared, and those that are no longer stored.
    vectors: u64,
    vectors_gone: u64,
    /// Entries that were forgotten, and batches from before that was possible which cannot be recomputed for it.
    forgotten: u64,
    batches_not_recomputed: u64,
    /// Hash of the last batch: with a note of it, removal of entries from the end can be detected.
    hash: String,
    problems: Vec<String>,
}

/// Verify the hash chain of the witness log; for administrators
#[utoipa::path(get, path = "/v1/witness/verify", tag = "memory",
    responses((status = 200, description = "The result", body = Verification),
              (status = 403, description = "The key does not allow this", body = ErrorBody),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
pub(crate) async fn verify(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Verification>, ApiError> {
    caller.require(Scope::Admin)?;
    let verified = api.with_memory(|memory| memory.witness().verify(&mut |_| {})).await?;
    Ok(Json(Verification {
        sound: verified.is_sound(),
        batches: verified.batches,
        entries: verified.entries,
        vectors: verified.vectors,
        vectors_gone: verified.vectors_gone,
        forgotten: verified.forgotten,
        batches_not_recomputed: verified.batches_not_recomputed,
        hash: verified.hash,
        problems: verified.problems.iter().map(ToString::to_string).collect(),
    }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StepsParam {
    /// How many links to similar requests to follow; 1 by default.
    #[serde(default = "one_step")]
    steps: usize,
}

fn one_step() -> usize {
    1
}

/// Maximum number of links.
const LINKS_MAX: usize = 20;

/// Show an entry of the witness log, the feedback on it, and its links
#[utoipa::path(get, path = "/v1/witness/{id}", tag = "memory",
    params(("id" = String, Path, description = "The id of the request or of its response, or the number of the entry"), StepsParam),
    responses((status = 200, description = "The entry", body = Object),
              (status = 404, description = "There is no such entry", body = ErrorBody)))]
pub(crate) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Params(StepsParam { steps }): Params<StepsParam>,
) -> Result<Json<Value>, ApiError> {
    let tenant = visible(&caller, None)?;
    let name = id.clone();
    let found = api.with_memory(move |memory| {
        let mut found = memory.witness().by_request(&id)?;
        if let Ok(number) = id.parse()
            && let Some(entry) = memory.witness().get(number)?
        {
            found.push((number, entry));
        }
        let is_visible = |entry: &WitnessEntry| tenant.as_ref().is_none_or(|tenant| *tenant == entry.tenant);
        let Some((number, entry)) = found.into_iter().find(|(_, entry)| is_visible(entry)) else { return Ok(None) };
        let edges = memory.witness().reachable(number, steps, 0.0, LINKS_MAX)?;
        let feedback = memory.witness().feedback(&entry)?;
        Ok(Some((number, entry, feedback, edges)))
    });
    let (number, entry, feedback, edges) =
        found.await?.ok_or_else(|| ApiError::not_found(format!("there is no entry {name:?} in the witness log")))?;
    let edges: Vec<Value> = edges
        .iter()
        .map(|(steps, edge)| {
            json!({ "kind": edge.kind.name(), "target": edge.target, "weight": edge.weight, "steps": steps })
        })
        .collect();
    Ok(Json(json!({ "id": number, "entry": entry, "feedback": feedback, "edges": edges })))
}
