//! Conversations that can be continued later: messages, model, and where the KV pages are.

mod heads;
mod room;
mod store;

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::database::{Reading, StoredVector, Writing, first_row};
use crate::error::{MemoryError, Result};
use crate::facets::{Kind, Metadata, Part, vector_id};
use crate::graph;
use crate::names::Names;
use crate::schema::take_numbers;
use crate::vector::VectorCode;

pub use heads::SessionSummary;
pub(crate) use heads::{list, make_heads};
pub(crate) use room::{expire, keep_quota, oldest};
pub use store::SessionStore;

/// Longer names would be unreadable in a path or a table.
const NAME_CHARS_MAX: usize = 200;

/// Maximum size of a conversation, as it is stored, that can be continued.
pub const CONVERSATION_BYTES_MAX: usize = 8 << 20;

/// What the last answer may add to it, and the rest of a session.
const LAST_BYTES_MAX: usize = 2 << 20;

/// Where the KV pages of a session were when its last turn ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KvState {
    /// `memory`, or `disk` if a disk tier keeps them across restarts.
    pub tier: String,
    /// The folder of the disk tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    pub tokens: u64,
    /// The format of its newest pages.
    pub precision: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Chosen by its user; unique for a tenant.
    pub name: String,
    pub tenant: String,
    /// The end user who began it, where the client named one.
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
    /// The conversation so far, as chat messages.
    pub messages: Vec<Json>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

impl Session {
    /// Creates a session that begins with this turn.
    pub(crate) fn begun_by(turn: &Turn) -> Self {
        Self {
            name: turn.session.clone(),
            tenant: turn.tenant.clone(),
            user: turn.user.clone(),
            created_ms: turn.at_ms,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, turn: &Turn) {
        self.model.clone_from(&turn.model);
        self.adapter.clone_from(&turn.adapter);
        self.active_ms = self.active_ms.max(turn.at_ms);
        self.turns += 1;
        self.kv.clone_from(&turn.kv);
        self.messages.extend(turn.messages.iter().cloned());
    }
}

/// One request of a session and its answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    pub session: String,
    pub tenant: String,
    pub user: Option<String>,
    pub model: String,
    pub adapter: Option<String>,
    /// The messages since the previous turn, with the answer.
    pub messages: Vec<Json>,
    pub kv: Option<KvState>,
    /// Embedding of the conversation; the session keeps the newest.
    pub embedding: Option<Vec<f32>>,
    pub at_ms: i64,
}

/// Selects sessions. The most recently used come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionQuery {
    /// `None` for all tenants.
    pub tenant: Option<String>,
    /// The end user who began it.
    pub user: Option<String>,
    pub since_ms: Option<i64>,
    pub count_max: usize,
}

impl Default for SessionQuery {
    fn default() -> Self {
        Self { tenant: None, user: None, since_ms: None, count_max: 100 }
    }
}

/// Checks that a name is allowed for a session.
pub fn check_name(name: &str) -> Result<()> {
    let problem = if name.is_empty() {
        "a session needs a name".to_owned()
    } else if name.chars().count() > NAME_CHARS_MAX {
        format!("a session's name has a maximum of {NAME_CHARS_MAX} characters")
    } else if name.chars().any(char::is_control) {
        "a session's name cannot have control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(MemoryError::invalid("session", problem))
}

/// Checks that a conversation of these messages can be stored. Called before a request is answered.
pub fn check_conversation<'a>(messages: impl IntoIterator<Item = &'a Json>) -> Result<()> {
    let mut bytes = 0;
    for message in messages {
        bytes += json_bytes(message);
        if bytes > CONVERSATION_BYTES_MAX {
            let mb = CONVERSATION_BYTES_MAX >> 20;
            let problem = format!("the conversation is full: it would take more than {mb} MB; begin another session");
            return Err(MemoryError::invalid("session", problem));
        }
    }
    Ok(())
}

/// Returns the length of a value as JSON, without building the text.
fn json_bytes(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail; a value that cannot be written is reported when it is stored.
    serde_json::to_writer(&mut count, value).ok();
    count.0
}

/// Returns the id of a session.
pub(crate) fn find(database: &mut dyn Reading, names: &Names, tenant: &str, name: &str) -> Result<Option<i64>> {
    let Some(tenant) = names.find(database, tenant)? else { return Ok(None) };
    let sql = "SELECT id FROM sessions WHERE tenant = $1 AND name = $2";
    first_row(database, sql, &[i64::from(tenant).into(), name.into()])?.map(|row| row[0].integer()).transpose()
}

pub(crate) fn get(
    database: &mut dyn Reading,
    names: &Names,
    tenant: &str,
    name: &str,
) -> Result<Option<(i64, Session)>> {
    let Some(tenant) = names.find(database, tenant)? else { return Ok(None) };
    let sql = "SELECT id, body FROM sessions WHERE tenant = $1 AND name = $2";
    let row = first_row(database, sql, &[i64::from(tenant).into(), name.into()])?;
    row.map(|row| Ok((row[0].integer()?, parse(row[1].as_text()?)?))).transpose()
}

/// Adds a turn, and creates the session if it is the first. The session counts as used at `least_ms` or later, whatever the
/// machine's clock said. Returns its id.
pub(crate) fn add_turn(
    database: &mut dyn Writing,
    names: &Names,
    turn: &Turn,
    code: Option<&VectorCode>,
    least_ms: i64,
) -> Result<i64> {
    check_name(&turn.session)?;
    let tenant = names.find_or_add(database, &turn.tenant)?;
    let known = get(database.as_reading(), names, &turn.tenant, &turn.session)?;
    let (id, mut session) = match known {
        Some(known) => known,
        None => (take_numbers(database, "entry", 1)?, Session::begun_by(turn)),
    };
    session.add(turn);
    session.active_ms = session.active_ms.max(least_ms);
    put(database, (id, tenant), &session, code)?;
    Ok(id)
}

/// Stores a session, and replaces one of the same name.
pub(crate) fn replace(database: &mut dyn Writing, names: &Names, session: &Session) -> Result<i64> {
    check_name(&session.name)?;
    let tenant = names.find_or_add(database, &session.tenant)?;
    let known = find(database.as_reading(), names, &session.tenant, &session.name)?;
    let id = match known {
        Some(id) => id,
        None => take_numbers(database, "entry", 1)?,
    };
    put(database, (id, tenant), session, None)?;
    Ok(id)
}

fn put(
    database: &mut dyn Writing,
    (id, tenant): (i64, u32),
    session: &Session,
    code: Option<&VectorCode>,
) -> Result<()> {
    let body = serde_json::to_string(session).map_err(|error| MemoryError::invalid("session", error.to_string()))?;
    if body.len() > CONVERSATION_BYTES_MAX + LAST_BYTES_MAX {
        let mb = body.len() >> 20;
        let problem = format!("the conversation takes {mb} MB, more than a session can; begin another session");
        return Err(MemoryError::invalid("session", problem));
    }
    heads::put(database, (id, tenant), session, body.len())?;
    let sql = "INSERT INTO sessions (id, tenant, name, adapter, active_ms, turns, body) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET \
               adapter = excluded.adapter, active_ms = excluded.active_ms, turns = excluded.turns, body = excluded.body";
    database.execute(
        sql,
        &[
            id.into(),
            i64::from(tenant).into(),
            session.name.as_str().into(),
            session.adapter.as_deref().into(),
            session.active_ms.into(),
            i64::try_from(session.turns).unwrap_or(i64::MAX).into(),
            body.into(),
        ],
    )?;
    if let Some(code) = code {
        let facets = Metadata::plain(Kind::Session, tenant, session.active_ms).facets();
        database.put_vector(StoredVector { id: vector_id(id, Part::Whole), code: code.clone(), facets })?;
    }
    Ok(())
}

pub(crate) fn by_id(database: &mut dyn Reading, id: i64) -> Result<Option<Session>> {
    let row = first_row(database, "SELECT body FROM sessions WHERE id = $1", &[id.into()])?;
    row.map(|row| parse(row[0].as_text()?)).transpose()
}

/// Returns how many sessions have this id: one or none.
pub(crate) fn exists(database: &mut dyn Reading, id: i64) -> Result<u64> {
    let found = first_row(database, "SELECT id FROM sessions WHERE id = $1", &[id.into()])?;
    Ok(u64::from(found.is_some()))
}

/// Returns whether there was such a session.
pub(crate) fn remove(database: &mut dyn Writing, names: &Names, tenant: &str, name: &str) -> Result<bool> {
    let Some(id) = find(database.as_reading(), names, tenant, name)? else { return Ok(false) };
    forget(database, id)?;
    Ok(true)
}

pub(crate) fn forget(database: &mut dyn Writing, id: i64) -> Result<()> {
    for table in ["sessions", "session_heads"] {
        database.execute(&format!("DELETE FROM {table} WHERE id = $1"), &[id.into()])?;
    }
    database.remove_vectors(&[vector_id(id, Part::Whole)])?;
    graph::disconnect(database, id)
}

fn parse(body: &str) -> Result<Session> {
    serde_json::from_str(body).map_err(|error| MemoryError::damaged(format!("a session cannot be read: {error}")))
}
