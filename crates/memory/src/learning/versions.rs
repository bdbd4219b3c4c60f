//! Versions that were learned, and which one each scope is served with.
//!
//! A version is an adapter, kept elsewhere and known by the digest of its contents, or a router, which is small and kept
//! with it. It comes with what it was learned from and the figures that it was judged by. What is served is a pointer: promoting and rolling back changes nothing else,
//! so that they are at once and exact.

mod change;
mod withdraw;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub(super) use change::{add, promote, reset, roll_back};
pub(super) use withdraw::withdraw;

use crate::database::{Reading, Value, first_row};
use crate::error::{MemoryError, Result};
use crate::names::Names;

/// The model of a scope whose versions choose between models.
pub const ROUTER_MODEL: &str = "auto";

/// Whose feedback was learned from, and who is served with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LearnedScope {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// `None` is all users of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub model: String,
}

/// What became of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VersionState {
    /// The gate let it through.
    Promoted,
    Refused,
    /// The gate refused it, and somebody had it served all the same.
    Forced,
    /// Something that it was learned from was forgotten: it is never served again.
    Withdrawn,
}

impl VersionState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Promoted => "promoted",
            Self::Refused => "refused",
            Self::Forced => "forced",
            Self::Withdrawn => "withdrawn",
        }
    }

    fn parse(name: &str) -> Result<Self> {
        let all = [Self::Promoted, Self::Refused, Self::Forced, Self::Withdrawn];
        let found = all.into_iter().find(|state| state.name() == name);
        found.ok_or_else(|| MemoryError::damaged("a version has an unknown state"))
    }
}

/// A version to be stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewVersion {
    /// Digest of the contents of the adapter or router, in hexadecimal, and their size.
    pub adapter: String,
    pub bytes: u64,
    /// Fingerprint of the model's file that it was judged on; empty for a router.
    pub model_digest: String,
    /// The contents of a router, which is no adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<Json>,
    /// The version that was served when it was judged; 0 is the model alone.
    pub parent: i64,
    /// Requests and end users whose feedback it was learned from or judged by; empty once they were forgotten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Digests of the items that it was learned from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<String>,
    /// Figures of the training and of the gate.
    pub report: Json,
}

/// A stored version.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearnedVersion {
    #[serde(flatten)]
    pub scope: LearnedScope,
    /// Counts from 1 in each scope.
    pub version: i64,
    pub at_ms: i64,
    pub state: VersionState,
    #[serde(flatten)]
    pub body: NewVersion,
}

/// What a scope is served with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScopeState {
    /// 0 is the model alone.
    pub version: i64,
    /// What was served before, the last at the end: where rolling back leads.
    pub trail: Vec<i64>,
    pub changed_ms: i64,
}

/// A router that chooses between models for a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedRouter {
    pub tenant: String,
    pub version: i64,
    pub router: Json,
}

/// An adapter that requests are answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedVersion {
    pub scope: LearnedScope,
    pub version: i64,
    pub adapter: String,
    pub model_digest: String,
}

/// The columns that name a scope, as parameters.
fn key(tenant: u32, scope: &LearnedScope) -> [Value; 3] {
    [i64::from(tenant).into(), scope.user.as_deref().unwrap_or_default().into(), scope.model.as_str().into()]
}

/// Returns the versions of a scope, the oldest first.
pub(super) fn versions(database: &mut dyn Reading, names: &Names, scope: &LearnedScope) -> Result<Vec<LearnedVersion>> {
    let Some(tenant) = names.find(database, &scope.tenant)? else { return Ok(Vec::new()) };
    let sql = "SELECT version, at_ms, state, body FROM learned_versions \
               WHERE tenant = $1 AND end_user = $2 AND model = $3 ORDER BY version";
    let mut found = Vec::new();
    database.rows(sql, &key(tenant, scope), &mut |row| {
        found.push(LearnedVersion {
            scope: scope.clone(),
            version: row[0].integer()?,
            at_ms: row[1].integer()?,
            state: VersionState::parse(row[2].as_text()?)?,
            body: parse(&row[3])?,
        });
        Ok(())
    })?;
    Ok(found)
}

/// Returns what a scope is served with: the model alone if nothing was ever promoted.
pub(super) fn state(database: &mut dyn Reading, names: &Names, scope: &LearnedScope) -> Result<ScopeState> {
    let Some(tenant) = names.find(database, &scope.tenant)? else { return Ok(ScopeState::default()) };
    let sql =
        "SELECT version, trail, changed_ms FROM learned_scopes WHERE tenant = $1 AND end_user = $2 AND model = $3";
    let row = first_row(database, sql, &key(tenant, scope))?;
    let state = |row: Vec<Value>| {
        Ok(ScopeState { version: row[0].integer()?, trail: parse(&row[1])?, changed_ms: row[2].integer()? })
    };
    row.map_or_else(|| Ok(ScopeState::default()), state)
}

/// Returns a number that changes whenever a scope is served with something else, or gets a version.
pub(super) fn change_count(database: &mut dyn Reading) -> Result<i64> {
    let row = first_row(database, "SELECT value FROM counters WHERE name = 'learned'", &[])?;
    row.ok_or_else(|| MemoryError::damaged("the counter of learned versions is missing"))?[0].integer()
}

/// Returns the adapters that all scopes are served with.
pub(super) fn served(database: &mut dyn Reading) -> Result<Vec<ServedVersion>> {
    let adapter = |(scope, version, body): (LearnedScope, i64, NewVersion)| {
        let NewVersion { adapter, model_digest, router, .. } = body;
        router.is_none().then_some(ServedVersion { scope, version, adapter, model_digest })
    };
    Ok(served_bodies(database)?.into_iter().filter_map(adapter).collect())
}

/// Returns the routers that choose between models, by tenant.
pub(super) fn served_routers(database: &mut dyn Reading) -> Result<Vec<ServedRouter>> {
    let router = |(scope, version, body): (LearnedScope, i64, NewVersion)| {
        Some(ServedRouter { tenant: scope.tenant, version, router: body.router? })
    };
    Ok(served_bodies(database)?.into_iter().filter_map(router).collect())
}

/// Returns what all scopes are served with, but for the model alone.
fn served_bodies(database: &mut dyn Reading) -> Result<Vec<(LearnedScope, i64, NewVersion)>> {
    let names = Names::all(database)?;
    let sql = "SELECT s.tenant, s.end_user, s.model, s.version, v.body FROM learned_scopes s \
               JOIN learned_versions v ON v.tenant = s.tenant AND v.end_user = s.end_user AND v.model = s.model \
               AND v.version = s.version WHERE s.version > 0 AND v.state <> 'withdrawn' \
               ORDER BY s.tenant, s.end_user, s.model";
    let mut found = Vec::new();
    database.rows(sql, &[], &mut |row| {
        let body: NewVersion = parse(&row[4])?;
        let tenant = u32::try_from(row[0].integer()?).unwrap_or_default();
        let user = row[1].as_text_owned()?;
        let scope = LearnedScope {
            tenant: names.get(&tenant).cloned().unwrap_or_default(),
            user: (!user.is_empty()).then_some(user),
            model: row[2].as_text_owned()?,
        };
        found.push((scope, row[3].integer()?, body));
        Ok(())
    })?;
    Ok(found)
}

/// Returns the digests of all adapters that some version may be served with.
pub(super) fn adapters(database: &mut dyn Reading) -> Result<std::collections::BTreeSet<String>> {
    let mut found = std::collections::BTreeSet::new();
    database.rows("SELECT body FROM learned_versions WHERE state <> 'withdrawn'", &[], &mut |row| {
        let NewVersion { adapter, router, .. } = parse(&row[0])?;
        found.extend(router.is_none().then_some(adapter));
        Ok(())
    })?;
    Ok(found)
}

fn parse<T: serde::de::DeserializeOwned>(text: &Value) -> Result<T> {
    serde_json::from_str(text.as_text()?)
        .map_err(|error| MemoryError::damaged(format!("a learned version cannot be read: {error}")))
}
