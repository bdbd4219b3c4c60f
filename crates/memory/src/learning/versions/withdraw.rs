//! Takes versions out of service that were learned from what is forgotten.

use std::collections::BTreeSet;

use super::change::{adapter_of, note, put, to_text};
use super::{LearnedScope, NewVersion, ScopeState, VersionState, parse, state};
use crate::database::{Value, Writing};
use crate::error::Result;
use crate::learning::Forget;
use crate::memory::now_ms;
use crate::names::Names;
use crate::schema::take_numbers;

/// A version, and where it is stored.
struct Found {
    id: i64,
    scope: LearnedScope,
    version: i64,
    body: NewVersion,
}

/// Withdraws all versions that were learned from, or judged by, what is forgotten: its `requests`, and if that is a
/// user or a tenant, everything of theirs. Returns how many. Their scopes are served with what was served before.
pub(in crate::learning) fn withdraw(
    database: &mut dyn Writing,
    names: &Names,
    (what, requests): (&Forget, &BTreeSet<String>),
    written_by: &str,
) -> Result<u64> {
    let found: Vec<Found> = all(database)?.into_iter().filter(|one| one.is_of(what, requests)).collect();
    if found.is_empty() {
        return Ok(0);
    }
    take_numbers(database, "learned", 1)?;
    let mut scopes: BTreeSet<LearnedScope> = BTreeSet::new();
    for Found { id, body, scope, .. } in &found {
        let left =
            NewVersion { requests: Vec::new(), users: Vec::new(), items: Vec::new(), router: None, ..body.clone() };
        let values: [Value; 3] = [VersionState::Withdrawn.name().into(), to_text(&left)?.into(), (*id).into()];
        database.execute("UPDATE learned_versions SET state = $1, body = $2 WHERE id = $3", &values)?;
        scopes.insert(scope.clone());
    }
    for scope in scopes {
        let gone: BTreeSet<i64> = found.iter().filter(|one| one.scope == scope).map(|one| one.version).collect();
        serve_what_is_left(database, names, &scope, &gone, written_by)?;
        let is_forgotten = match what {
            Forget::User { name, .. } => scope.user.as_ref() == Some(name),
            Forget::Tenant(name) => scope.tenant == *name,
            Forget::Request { .. } => false,
        };
        if is_forgotten {
            remove(database, names, &scope)?;
        }
    }
    Ok(found.len() as u64)
}

impl Found {
    fn is_of(&self, what: &Forget, requests: &BTreeSet<String>) -> bool {
        if self.body.requests.iter().any(|request| requests.contains(request)) {
            return true;
        }
        match what {
            Forget::Request { .. } => false,
            Forget::User { tenant, name } => {
                tenant.as_ref().is_none_or(|tenant| *tenant == self.scope.tenant)
                    && (self.scope.user.as_ref() == Some(name) || self.body.users.contains(name))
            }
            Forget::Tenant(name) => self.scope.tenant == *name,
        }
    }
}

fn all(database: &mut dyn Writing) -> Result<Vec<Found>> {
    let names = Names::all(database.as_reading())?;
    let sql = "SELECT id, tenant, end_user, model, version, body FROM learned_versions WHERE state <> 'withdrawn'";
    let mut found = Vec::new();
    database.rows(sql, &[], &mut |row| {
        let tenant = u32::try_from(row[1].integer()?).unwrap_or_default();
        let user = row[2].as_text_owned()?;
        let scope = LearnedScope {
            tenant: names.get(&tenant).cloned().unwrap_or_default(),
            user: (!user.is_empty()).then_some(user),
            model: row[3].as_text_owned()?,
        };
        found.push(Found { id: row[0].integer()?, scope, version: row[4].integer()?, body: parse(&row[5])? });
        Ok(())
    })?;
    Ok(found)
}

/// Takes versions off the way back, and serves the last that is left if one of them is served.
fn serve_what_is_left(
    database: &mut dyn Writing,
    names: &Names,
    scope: &LearnedScope,
    gone: &BTreeSet<i64>,
    written_by: &str,
) -> Result<()> {
    let ScopeState { version: before, mut trail, changed_ms } = state(database.as_reading(), names, scope)?;
    trail.retain(|version| !gone.contains(version));
    let is_served = gone.contains(&before);
    let version = if is_served { trail.pop().unwrap_or(0) } else { before };
    let changed_ms = if is_served { now_ms() } else { changed_ms };
    put(database, names, scope, &ScopeState { version, trail, changed_ms })?;
    if is_served {
        let adapter = adapter_of(database, names, scope, version)?;
        // Without the user's name: that may be what is forgotten.
        let scope = LearnedScope { user: None, ..scope.clone() };
        note(database, names, &scope, (before, version, adapter), ("withdrawn", written_by))?;
    }
    Ok(())
}

/// Removes a scope that was forgotten as a whole: its name, too.
fn remove(database: &mut dyn Writing, names: &Names, scope: &LearnedScope) -> Result<()> {
    let key = super::key(names.find_or_add(database, &scope.tenant)?, scope);
    for table in ["learned_versions", "learned_scopes"] {
        let sql = format!("DELETE FROM {table} WHERE tenant = $1 AND end_user = $2 AND model = $3");
        database.execute(&sql, &key)?;
    }
    Ok(())
}
