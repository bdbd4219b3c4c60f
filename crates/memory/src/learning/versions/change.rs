//! Adds versions, and changes what a scope is served with. Each change is an entry of the witness log.

use super::{LearnedScope, NewVersion, ScopeState, VersionState, key, parse, state};
use crate::database::{Writing, first_row};
use crate::error::{MemoryError, Result};
use crate::learning::forget::forgotten;
use crate::memory::now_ms;
use crate::names::Names;
use crate::schema::take_numbers;
use crate::witness::{self, Annotation, LearningChange, Said};

/// How far back a scope can be rolled.
const TRAIL_MAX: usize = 100;

/// Stores a version and serves it if the gate `promotes` it. Returns its number. Refuses what is out of date: another
/// version is served than the one that it was judged against, or something that it was learned from was forgotten
/// since `read_ms`.
pub(in crate::learning) fn add(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    (new, promotes, read_ms): (&NewVersion, bool, i64),
    written_by: &str,
) -> Result<i64> {
    // Also makes writers wait for each other.
    take_numbers(database, "learned", 1)?;
    let tenant = names.find_or_add(database, &scope.tenant)?;
    let now = state(database.as_reading(), names, scope)?;
    if now.version != new.parent {
        let problem = format!("version {} is served since it was judged; learn again", now.version);
        return Err(MemoryError::invalid("version", problem));
    }
    let gone = forgotten(database.as_reading(), read_ms)?;
    if gone.iter().any(|(_, gone)| gone.requests.iter().any(|request| new.requests.contains(request))) {
        return Err(MemoryError::invalid("version", "something that it was learned from was forgotten; learn again"));
    }
    let sql =
        "SELECT coalesce(max(version), 0) FROM learned_versions WHERE tenant = $1 AND end_user = $2 AND model = $3";
    let last = first_row(database, sql, &key(tenant, scope))?.map_or(Ok(0), |row| row[0].integer())?;
    let (version, at_ms) = (last + 1, now_ms());
    let id = take_numbers(database, "entry", 1)?;
    let state = if promotes { VersionState::Promoted } else { VersionState::Refused };
    let [tenant, user, model] = key(tenant, scope);
    let sql = "INSERT INTO learned_versions (id, tenant, end_user, model, version, at_ms, state, body) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let values =
        [id.into(), tenant, user, model, version.into(), at_ms.into(), state.name().into(), to_text(new)?.into()];
    database.execute(sql, &values)?;
    if promotes {
        point(database, names, scope, &now, version, ("promoted", written_by))?;
    }
    Ok(version)
}

/// Serves a version. One that the gate refused is served only if it is `forced`.
pub(in crate::learning) fn promote(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    (version, forced): (i64, bool),
    written_by: &str,
) -> Result<()> {
    take_numbers(database, "learned", 1)?;
    let now = state(database.as_reading(), names, scope)?;
    let action = match state_of(database, names, scope, version)? {
        None => return Err(MemoryError::NotFound { kind: "version", name: version.to_string(), is_tenants: false }),
        Some(VersionState::Withdrawn) => {
            let problem = "something that it was learned from was forgotten, so it is never served again";
            return Err(MemoryError::invalid("version", problem));
        }
        Some(VersionState::Refused) if !forced => {
            let problem = "the gate refused it; --force serves it all the same, and the log will say so";
            return Err(MemoryError::invalid("version", problem));
        }
        Some(VersionState::Refused) => {
            let [tenant, user, model] = key(names.find_or_add(database, &scope.tenant)?, scope);
            let sql = "UPDATE learned_versions SET state = $1 \
                       WHERE tenant = $2 AND end_user = $3 AND model = $4 AND version = $5";
            let values = [VersionState::Forced.name().into(), tenant, user, model, version.into()];
            database.execute(sql, &values)?;
            "forced"
        }
        Some(VersionState::Forced) => "forced",
        Some(VersionState::Promoted) => "promoted",
    };
    if now.version == version {
        return Err(MemoryError::invalid("version", format!("version {version} is served already")));
    }
    point(database, names, scope, &now, version, (action, written_by))
}

/// Serves what was served before. Returns the number of that version; 0 is the model alone.
pub(in crate::learning) fn roll_back(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    written_by: &str,
) -> Result<i64> {
    take_numbers(database, "learned", 1)?;
    let now = state(database.as_reading(), names, scope)?;
    let Some((before, trail)) = now.trail.split_last() else {
        return Err(MemoryError::invalid("version", "nothing was served before: there is nothing to go back to"));
    };
    put(database, names, scope, &ScopeState { version: *before, trail: trail.to_vec(), changed_ms: now_ms() })?;
    let adapter = adapter_of(database, names, scope, *before)?;
    note(database, names, scope, (now.version, *before, adapter), ("rolled_back", written_by))?;
    Ok(*before)
}

/// Serves the model alone. Versions stay, and so does the way back.
pub(in crate::learning) fn reset(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    written_by: &str,
) -> Result<()> {
    take_numbers(database, "learned", 1)?;
    let now = state(database.as_reading(), names, scope)?;
    if now.version == 0 {
        return Err(MemoryError::invalid("version", "the model alone is served already"));
    }
    point(database, names, scope, &now, 0, ("reset", written_by))
}

/// Serves another version, and remembers the way back.
fn point(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    now: &ScopeState,
    version: i64,
    said: (&str, &str),
) -> Result<()> {
    let mut trail = now.trail.clone();
    trail.push(now.version);
    let first = trail.len().saturating_sub(TRAIL_MAX);
    put(database, names, scope, &ScopeState { version, trail: trail.split_off(first), changed_ms: now_ms() })?;
    let adapter = adapter_of(database, names, scope, version)?;
    note(database, names, scope, (now.version, version, adapter), said)
}

pub(super) fn put(database: &mut dyn Writing, names: &Names, scope: &LearnedScope, state: &ScopeState) -> Result<()> {
    let [tenant, user, model] = key(names.find_or_add(database, &scope.tenant)?, scope);
    let sql = "INSERT INTO learned_scopes (tenant, end_user, model, version, trail, changed_ms) \
               VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, end_user, model) DO UPDATE \
               SET version = excluded.version, trail = excluded.trail, changed_ms = excluded.changed_ms";
    let trail = to_text(&state.trail)?;
    let values = [tenant, user, model, state.version.into(), trail.into(), state.changed_ms.into()];
    database.execute(sql, &values).map(drop)
}

/// Says in the log what is served from now on.
pub(super) fn note(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    (before, version, adapter): (i64, i64, Option<String>),
    (action, written_by): (&str, &str),
) -> Result<()> {
    let annotation = Annotation {
        request: written_by.to_owned(),
        at_ms: now_ms(),
        tenant: scope.tenant.clone(),
        about: None,
        user: scope.user.clone(),
        model: scope.model.clone(),
        said: Said::Learning(LearningChange { action: action.to_owned(), version, before, adapter }),
    };
    let prepared = [witness::Prepared::Annotation(Box::new(annotation))];
    witness::append(database, names, &prepared, now_ms()).map(drop)
}

fn state_of(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    version: i64,
) -> Result<Option<VersionState>> {
    let all = super::versions(database.as_reading(), names, scope)?;
    Ok(all.into_iter().find(|one| one.version == version).map(|one| one.state))
}

/// Returns the digest of the adapter of a version; the model alone has none.
pub(super) fn adapter_of(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    version: i64,
) -> Result<Option<String>> {
    let [tenant, user, model] = key(names.find_or_add(database, &scope.tenant)?, scope);
    let sql = "SELECT body FROM learned_versions WHERE tenant = $1 AND end_user = $2 AND model = $3 AND version = $4";
    let row = first_row(database, sql, &[tenant, user, model, version.into()])?;
    row.map(|row| Ok(parse::<NewVersion>(&row[0])?.adapter)).transpose()
}

pub(super) fn to_text(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| MemoryError::invalid("version", error.to_string()))
}
