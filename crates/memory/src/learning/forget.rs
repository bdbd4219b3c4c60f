//! Forgets a request, a user or a tenant: trajectories, texts, embeddings, sessions, what was said about them, and
//! what was learned from them.
//!
//! An entry of the log is blanked, and an annotation names the blanked ones: its digest stays, so that the chain can still be
//! recomputed. Work is done in portions, between which others may write.

mod select;

use std::collections::BTreeSet;

use select::{Conditions, ids_of};

use super::retention::{ids, remove};
use super::trajectory::rate_again;
use super::versions;
use crate::Memory;
use crate::database::{Reading, Value, Writing, first_row};
use crate::error::{MemoryError, Result};
use crate::facets::{Part, vector_id};
use crate::graph;
use crate::memory::now_ms;
use crate::sessions;
use crate::users::check_user;
use crate::witness::{self, Annotation, FEEDBACK, FORGETTING, FORGOTTEN, Forgetting, ForgottenEntry, LogEntry, Said};

/// Entries blanked in one transaction.
const AT_ONCE: usize = 200;

/// What to forget. `tenant` is `None` for all tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forget {
    /// By an id that its client was told: all choices of the answer.
    Request {
        tenant: Option<String>,
        id: String,
    },
    User {
        tenant: Option<String>,
        name: String,
    },
    Tenant(String),
}

impl Forget {
    pub(super) fn scope(&self) -> &'static str {
        match self {
            Self::Request { .. } => "request",
            Self::User { .. } => "user",
            Self::Tenant(_) => "tenant",
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Request { id: name, .. } | Self::User { name, .. } | Self::Tenant(name) => name,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::User { name, .. } => check_user(name),
            Self::Request { id, .. } if id.is_empty() => Err(MemoryError::invalid("request", "name a request")),
            Self::Request { .. } | Self::Tenant(_) => Ok(()),
        }
    }

    fn tenant(&self) -> Option<&str> {
        match self {
            Self::Request { tenant, .. } | Self::User { tenant, .. } => tenant.as_deref(),
            Self::Tenant(name) => Some(name),
        }
    }
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Forgotten {
    /// Requests whose entry or trajectory is gone.
    pub requests: u64,
    /// Entries of feedback.
    pub feedback: u64,
    pub trajectories: u64,
    pub sessions: u64,
    pub embeddings: u64,
    /// Learned versions that are never served again, since they were learned from some of it.
    pub versions: u64,
}

pub(super) fn forget(memory: &Memory, what: &Forget, written_by: &str) -> Result<Forgotten> {
    let mut all = Forgotten::default();
    // Found before the first is gone: the rest of a response is found by its id.
    let ids = match what {
        Forget::Request { tenant, id } => memory.read(|reading| ids_of(reading, tenant.as_deref(), id))?,
        Forget::User { .. } | Forget::Tenant(_) => Vec::new(),
    };
    loop {
        let (portion, is_last) = memory.write(|writing| {
            let Some(conditions) = Conditions::of(writing.as_reading(), &memory.names, what, &ids)? else {
                return Ok((Forgotten::default(), true));
            };
            Portion::default().forget(writing, memory, &conditions, (what, written_by))
        })?;
        all.requests += portion.requests;
        all.feedback += portion.feedback;
        all.trajectories += portion.trajectories;
        all.sessions += portion.sessions;
        all.embeddings += portion.embeddings;
        all.versions += portion.versions;
        if is_last {
            return Ok(all);
        }
    }
}

/// An entry to be blanked.
struct Entry {
    id: i64,
    tenant: i64,
    request: String,
    session: Option<i64>,
    kind: Option<String>,
}

/// What one transaction forgets.
#[derive(Default)]
struct Portion {
    forgotten: Forgotten,
    entries: Vec<i64>,
    requests: BTreeSet<String>,
}

impl Portion {
    /// Returns what was removed, and whether nothing is left.
    fn forget(
        mut self,
        database: &mut dyn Writing,
        memory: &Memory,
        conditions: &Conditions,
        (what, written_by): (&Forget, &str),
    ) -> Result<(Forgotten, bool)> {
        let Conditions { sql, params, sessions } = conditions;
        let select = format!(
            "SELECT id, tenant, request, session, kind FROM witness WHERE {sql} \
             AND (kind IS NULL OR kind NOT IN ('{FORGOTTEN}', '{FORGETTING}')) ORDER BY id LIMIT {AT_ONCE}"
        );
        let found = entries(database.as_reading(), &select, params)?;
        let mut of_sessions: BTreeSet<i64> = found.iter().filter_map(|entry| entry.session).collect();
        for entry in &found {
            self.blank(database, entry)?;
        }
        // Trajectories and sessions that have outlived their entries.
        let is_last = found.len() < AT_ONCE && self.remove_trajectories(database, sql, params)? < AT_ONCE;
        if let (Some((sql, params)), true) = (sessions, is_last) {
            let sql = format!("SELECT id FROM session_heads WHERE {sql}");
            of_sessions.extend(ids(database.as_reading(), &sql, params)?);
        }
        for session in of_sessions {
            self.forgotten.sessions += sessions::exists(database.as_reading(), session)?;
            self.forgotten.embeddings += stored_vectors(database.as_reading(), &[vector_id(session, Part::Whole)])?;
            sessions::forget(database, session)?;
        }
        self.forgotten.requests = self.requests.len() as u64;
        self.forgotten.versions = versions::withdraw(database, &memory.names, (what, &self.requests), written_by)?;
        self.note(database, memory, what, written_by)?;
        Ok((self.forgotten, is_last))
    }

    /// Blanks an entry, and if it is a request, what was said about it.
    fn blank(&mut self, database: &mut dyn Writing, entry: &Entry) -> Result<()> {
        if blank(database, entry, &mut self.forgotten)? {
            self.entries.push(entry.id);
        }
        if entry.kind.is_some() {
            return Ok(());
        }
        self.requests.insert(entry.request.clone());
        let about =
            "SELECT id, tenant, request, session, kind FROM witness WHERE about = $1 AND tenant = $2 AND kind = $3";
        let params = [entry.request.as_str().into(), entry.tenant.into(), FEEDBACK.into()];
        for said in entries(database.as_reading(), about, &params)? {
            if blank(database, &said, &mut self.forgotten)? {
                self.entries.push(said.id);
            }
        }
        Ok(())
    }

    /// Returns how many there were; there may be more if that is [`AT_ONCE`].
    fn remove_trajectories(&mut self, database: &mut dyn Writing, sql: &str, params: &[Value]) -> Result<usize> {
        let mut found = Vec::new();
        let sql = format!("SELECT id, request FROM trajectories WHERE {sql} ORDER BY id LIMIT {AT_ONCE}");
        database.rows(&sql, params, &mut |row| {
            found.push(row[0].integer()?);
            self.requests.insert(row[1].as_text_owned()?);
            Ok(())
        })?;
        self.forgotten.trajectories += found.len() as u64;
        remove(database, &found)?;
        Ok(found.len())
    }

    /// Says in the log what was forgotten.
    fn note(&mut self, database: &mut dyn Writing, memory: &Memory, what: &Forget, written_by: &str) -> Result<()> {
        if self.entries.is_empty() && self.requests.is_empty() {
            return Ok(());
        }
        let forgetting = Forgetting {
            scope: what.scope().to_owned(),
            entries: std::mem::take(&mut self.entries),
            requests: std::mem::take(&mut self.requests).into_iter().collect(),
        };
        let annotation = Annotation {
            request: written_by.to_owned(),
            at_ms: now_ms(),
            tenant: what.tenant().unwrap_or_default().to_owned(),
            about: None,
            user: None,
            model: String::new(),
            said: Said::Forgetting(forgetting),
        };
        let prepared = [witness::Prepared::Annotation(Box::new(annotation))];
        witness::append(database, &memory.names, &prepared, now_ms()).map(drop)
    }
}

fn entries(database: &mut dyn Reading, sql: &str, params: &[Value]) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    database.rows(sql, params, &mut |row| {
        found.push(Entry {
            id: row[0].integer()?,
            tenant: row[1].integer()?,
            request: row[2].as_text_owned()?,
            session: row[3].optional(Value::integer)?,
            kind: row[4].optional(Value::as_text_owned)?,
        });
        Ok(())
    })?;
    Ok(found)
}

/// Replaces the body of an entry by its digest, and removes its figures, vectors, edges and trajectory. Returns whether it had
/// a body.
fn blank(database: &mut dyn Writing, entry: &Entry, forgotten: &mut Forgotten) -> Result<bool> {
    let id: Value = entry.id.into();
    let sql = "SELECT b.body FROM witness w JOIN witness_bodies b ON b.id = w.id WHERE w.id = $1 AND w.kind IS NULL";
    let of_kind = "SELECT b.body FROM witness w JOIN witness_bodies b ON b.id = w.id WHERE w.id = $1 AND w.kind = $2";
    let row = match &entry.kind {
        None => first_row(database, sql, std::slice::from_ref(&id))?,
        Some(kind) => first_row(database, of_kind, &[id.clone(), kind.as_str().into()])?,
    };
    // Blanked by this transaction already.
    let Some(row) = row else { return Ok(false) };
    let body = row[0].as_text()?;
    let damaged = |error| MemoryError::damaged(format!("an entry cannot be read: {error}"));
    let parsed = LogEntry::parse(entry.kind.as_deref(), body).map_err(damaged)?;
    let left = serde_json::to_string(&ForgottenEntry::of(&parsed, body)).map_err(damaged)?;
    database.execute("UPDATE witness_bodies SET body = $1 WHERE id = $2", &[left.into(), id.clone()])?;
    let sql = "UPDATE witness SET kind = $1, session = NULL, about = NULL, response = NULL, end_user = NULL, choice = NULL, \
               total_ms = 0, quality = NULL, error = NULL, prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0 \
               WHERE id = $2";
    database.execute(sql, &[FORGOTTEN.into(), id.clone()])?;
    let vectors = [vector_id(entry.id, Part::Whole), vector_id(entry.id, Part::Answer)];
    forgotten.embeddings += stored_vectors(database.as_reading(), &vectors)?;
    database.remove_vectors(&vectors)?;
    graph::disconnect(database, entry.id)?;
    forgotten.trajectories += database.execute("DELETE FROM trajectories WHERE id = $1", &[id])?;
    forgotten.feedback += u64::from(entry.kind.as_deref() == Some(FEEDBACK));
    if let LogEntry::Annotation(annotation) = &parsed
        && let Some(about) = &annotation.about
    {
        rate_again(database, (entry.tenant, about))?;
    }
    Ok(true)
}

/// Returns how many of these vectors are stored.
fn stored_vectors(database: &mut dyn Reading, vectors: &[i64]) -> Result<u64> {
    let mut stored = 0;
    for vector in vectors {
        stored += ids(database, "SELECT id FROM vectors WHERE id = $1", &[(*vector).into()])?.len() as u64;
    }
    Ok(stored)
}

/// Returns what entries of the log say was forgotten since a time.
pub(super) fn forgotten(database: &mut dyn Reading, since_ms: i64) -> Result<Vec<(i64, Forgetting)>> {
    let sql = "SELECT w.at_ms, b.body FROM witness w JOIN witness_bodies b ON b.id = w.id \
               WHERE w.kind = $1 AND w.at_ms >= $2 ORDER BY w.id";
    let mut found = Vec::new();
    database.rows(sql, &[FORGETTING.into(), since_ms.into()], &mut |row| {
        let forgetting = serde_json::from_str(row[1].as_text()?);
        let damaged = |error| MemoryError::damaged(format!("an entry cannot be read: {error}"));
        found.push((row[0].integer()?, forgetting.map_err(damaged)?));
        Ok(())
    })?;
    Ok(found)
}
