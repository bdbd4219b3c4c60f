//! Summaries of sessions, stored apart from their messages: a list need not read conversations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{KvState, Session, SessionQuery, parse};
use crate::database::{Reading, Value, Writing, first_row};
use crate::error::{MemoryError, Result};
use crate::names::Names;

/// A session without its messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionSummary {
    pub name: String,
    pub tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    pub created_ms: i64,
    pub active_ms: i64,
    pub turns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvState>,
    /// Number of messages.
    pub messages: usize,
    /// Size of the whole session as it is stored.
    pub bytes: usize,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

impl SessionSummary {
    fn of(session: &Session, bytes: usize) -> Self {
        let Session { name, tenant, user, model, adapter, created_ms, active_ms, turns, kv, messages, metadata } =
            session;
        Self {
            name: name.clone(),
            tenant: tenant.clone(),
            user: user.clone(),
            model: model.clone(),
            adapter: adapter.clone(),
            created_ms: *created_ms,
            active_ms: *active_ms,
            turns: *turns,
            kv: kv.clone(),
            messages: messages.len(),
            bytes,
            metadata: metadata.clone(),
        }
    }
}

pub(super) fn put(database: &mut dyn Writing, (id, tenant): (i64, u32), session: &Session, bytes: usize) -> Result<()> {
    let head = serde_json::to_string(&SessionSummary::of(session, bytes));
    let head = head.map_err(|error| MemoryError::invalid("session", error.to_string()))?;
    let sql = "INSERT INTO session_heads (id, tenant, adapter, active_ms, bytes, head, end_user) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET end_user = excluded.end_user, adapter = excluded.adapter, active_ms = excluded.active_ms, \
               bytes = excluded.bytes, head = excluded.head";
    let values = [
        id.into(),
        i64::from(tenant).into(),
        session.adapter.as_deref().into(),
        session.active_ms.into(),
        (bytes as i64).into(),
        head.into(),
        session.user.as_deref().into(),
    ];
    database.execute(sql, &values).map(drop)
}

/// Creates the summaries of a store whose schema did not have them.
pub(crate) fn make_heads(database: &mut dyn Writing) -> Result<()> {
    let mut sessions = Vec::new();
    database.rows("SELECT id, tenant FROM sessions", &[], &mut |row| {
        sessions.push((row[0].integer()?, u32::try_from(row[1].integer()?).unwrap_or_default()));
        Ok(())
    })?;
    for (id, tenant) in sessions {
        // One at a time, since conversations are long.
        if let Some(row) = first_row(database, "SELECT body FROM sessions WHERE id = $1", &[id.into()])? {
            let body = row[0].as_text()?;
            put(database, (id, tenant), &parse(body)?, body.len())?;
        }
    }
    Ok(())
}

pub(crate) fn list(database: &mut dyn Reading, names: &Names, query: &SessionQuery) -> Result<Vec<SessionSummary>> {
    let mut params = Vec::new();
    let mut conditions = String::from("1 = 1");
    let mut limit_by = |column: &str, value: Value| {
        params.push(value);
        conditions.push_str(&format!(" AND {column} ${}", params.len()));
    };
    if let Some(tenant) = &query.tenant {
        let Some(tenant) = names.find(database, tenant)? else { return Ok(Vec::new()) };
        limit_by("tenant =", i64::from(tenant).into());
    }
    if let Some(user) = &query.user {
        limit_by("end_user =", user.as_str().into());
    }
    if let Some(since_ms) = query.since_ms {
        limit_by("active_ms >=", since_ms.into());
    }
    let count = query.count_max;
    let sql =
        format!("SELECT head FROM session_heads WHERE {conditions} ORDER BY active_ms DESC, id DESC LIMIT {count}");
    let mut found = Vec::new();
    database.rows(&sql, &params, &mut |row| {
        let head = serde_json::from_str(row[0].as_text()?);
        found.push(head.map_err(|error| MemoryError::damaged(format!("a session cannot be read: {error}")))?);
        Ok(())
    })?;
    Ok(found)
}
