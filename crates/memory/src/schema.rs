//! The tables and their migrations.

use crate::database::{Writing, first_row};
use crate::error::{MemoryError, Result};
use crate::sessions;

/// The steps from each version to the next. Steps are only ever added.
///
/// Names of tenants and models are numbers elsewhere (`names`), since they are facets of vectors. The bodies of witness
/// entries are stored apart, so that aggregates need not read them, and for the same reason the summaries of sessions are
/// stored apart from their messages. End users are no names: there may be any number of them. `ID` stands for the
/// database's type of a primary key.
const STEPS: [&[&str]; 6] = [
    &[
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
        "INSERT INTO counters (name, value) VALUES ('entry', 0), ('name', 0)",
        "CREATE TABLE names (id ID, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE edges (source BIGINT NOT NULL, kind TEXT NOT NULL, target BIGINT NOT NULL, weight DOUBLE PRECISION NOT NULL, at_ms BIGINT NOT NULL, PRIMARY KEY (source, kind, target))",
        "CREATE INDEX edges_by_target ON edges (target, kind)",
        "CREATE TABLE policies (id ID, tenant BIGINT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, fisher BYTEA, created_ms BIGINT NOT NULL, accessed_ms BIGINT NOT NULL, UNIQUE (tenant, kind, name))",
        "CREATE TABLE sessions (id ID, tenant BIGINT NOT NULL, name TEXT NOT NULL, adapter TEXT, active_ms BIGINT NOT NULL, turns BIGINT NOT NULL, body TEXT NOT NULL, UNIQUE (tenant, name))",
        "CREATE INDEX sessions_by_activity ON sessions (active_ms)",
        "CREATE INDEX sessions_by_adapter ON sessions (adapter)",
        "CREATE TABLE witness (id ID, batch BIGINT NOT NULL, request TEXT NOT NULL, tenant BIGINT NOT NULL, model BIGINT NOT NULL, session BIGINT, at_ms BIGINT NOT NULL, total_ms DOUBLE PRECISION NOT NULL, quality DOUBLE PRECISION, error TEXT, prompt_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, answer_tokens BIGINT NOT NULL)",
        "CREATE INDEX witness_by_time ON witness (at_ms)",
        "CREATE INDEX witness_by_request ON witness (request)",
        "CREATE INDEX witness_by_session ON witness (session)",
        "CREATE TABLE witness_bodies (id ID, body TEXT NOT NULL)",
        "CREATE TABLE batches (id ID, first BIGINT NOT NULL, last BIGINT NOT NULL, at_ms BIGINT NOT NULL, bytes BIGINT NOT NULL, hash BYTEA NOT NULL)",
    ],
    &[
        "CREATE TABLE session_heads (id ID, tenant BIGINT NOT NULL, adapter TEXT, active_ms BIGINT NOT NULL, bytes BIGINT NOT NULL, head TEXT NOT NULL)",
        "CREATE INDEX session_heads_by_tenant ON session_heads (tenant, active_ms, bytes)",
        "CREATE INDEX session_heads_by_activity ON session_heads (active_ms)",
        "CREATE INDEX session_heads_by_adapter ON session_heads (adapter)",
        "INSERT INTO counters (name, value) VALUES ('policies', 0)",
    ],
    &[
        "ALTER TABLE witness ADD COLUMN kind TEXT",
        "ALTER TABLE witness ADD COLUMN about TEXT",
        "ALTER TABLE witness ADD COLUMN response TEXT",
        "ALTER TABLE witness ADD COLUMN end_user TEXT",
        "CREATE INDEX witness_by_about ON witness (about) WHERE about IS NOT NULL",
        "CREATE INDEX witness_by_response ON witness (response) WHERE response IS NOT NULL",
        "CREATE INDEX witness_by_user ON witness (end_user) WHERE end_user IS NOT NULL",
        "CREATE INDEX witness_by_kind ON witness (kind) WHERE kind IS NOT NULL",
        "ALTER TABLE batches ADD COLUMN rule BIGINT",
        "ALTER TABLE session_heads ADD COLUMN end_user TEXT",
        "CREATE INDEX session_heads_by_user ON session_heads (end_user) WHERE end_user IS NOT NULL",
        "CREATE TABLE trajectories (id ID, tenant BIGINT NOT NULL, request TEXT NOT NULL, response TEXT, end_user TEXT, at_ms BIGINT NOT NULL, bytes BIGINT NOT NULL, body TEXT NOT NULL, feedback TEXT)",
        "CREATE INDEX trajectories_by_time ON trajectories (at_ms)",
        "CREATE INDEX trajectories_by_tenant ON trajectories (tenant, at_ms, bytes)",
        "CREATE INDEX trajectories_by_request ON trajectories (request)",
        "CREATE INDEX trajectories_by_response ON trajectories (response) WHERE response IS NOT NULL",
        "CREATE INDEX trajectories_by_user ON trajectories (end_user) WHERE end_user IS NOT NULL",
    ],
    &[
        "CREATE TABLE learned_versions (id ID, tenant BIGINT NOT NULL, end_user TEXT NOT NULL, model TEXT NOT NULL, version BIGINT NOT NULL, at_ms BIGINT NOT NULL, state TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (tenant, end_user, model, version))",
        "CREATE TABLE learned_scopes (tenant BIGINT NOT NULL, end_user TEXT NOT NULL, model TEXT NOT NULL, version BIGINT NOT NULL, trail TEXT NOT NULL, changed_ms BIGINT NOT NULL, PRIMARY KEY (tenant, end_user, model))",
        "INSERT INTO counters (name, value) VALUES ('learned', 0)",
    ],
    &[
        "ALTER TABLE witness ADD COLUMN choice BIGINT",
        "CREATE INDEX witness_by_choice ON witness (tenant, id) WHERE choice IS NOT NULL",
    ],
    &[
        "CREATE TABLE workers (worker TEXT PRIMARY KEY, seen_ms BIGINT NOT NULL, body TEXT NOT NULL)",
        "INSERT INTO counters (name, value) VALUES ('workers', 0)",
    ],
];

pub(crate) const VERSION: i64 = STEPS.len() as i64;

/// What differs between the databases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect<'a> {
    pub id: &'a str,
    /// Statements that create the tables of vectors.
    pub vectors: &'a [String],
}

/// Migrates the tables to this version.
pub(crate) fn migrate(database: &mut dyn Writing, dialect: Dialect<'_>) -> Result<()> {
    database.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)", &[])?;
    let found = match meta(database, "schema")? {
        Some(version) => version.parse().map_err(|_| MemoryError::damaged("its schema has no number"))?,
        None => 0,
    };
    if found > VERSION {
        return Err(MemoryError::NewerSchema { found, known: VERSION });
    }
    for step in &STEPS[usize::try_from(found).unwrap_or_default()..] {
        for statement in *step {
            database.execute(&statement.replace("id ID", &format!("id {}", dialect.id)), &[])?;
        }
    }
    if found == 1 {
        sessions::make_heads(database)?;
    }
    if found == 0 {
        for statement in dialect.vectors {
            database.execute(statement, &[])?;
        }
    }
    if found < VERSION {
        set_meta(database, "schema", &VERSION.to_string())?;
    }
    Ok(())
}

pub(crate) fn meta<R: crate::database::Reading + ?Sized>(database: &mut R, name: &str) -> Result<Option<String>> {
    let row = first_row(database, "SELECT value FROM meta WHERE name = $1", &[name.into()])?;
    row.map(|row| Ok(row[0].as_text()?.to_owned())).transpose()
}

pub(crate) fn set_meta(database: &mut dyn Writing, name: &str, value: &str) -> Result<()> {
    let sql = "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    database.execute(sql, &[name.into(), value.into()]).map(drop)
}

/// Reserves `count` numbers and returns the first of them. Serialises callers, on all machines, until the transaction
/// ends.
pub(crate) fn take_numbers(database: &mut dyn Writing, counter: &str, count: usize) -> Result<i64> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let sql = "UPDATE counters SET value = value + $1 WHERE name = $2 RETURNING value";
    let row = first_row(database, sql, &[count.into(), counter.into()])?;
    let row = row.ok_or_else(|| MemoryError::damaged(format!("the counter {counter:?} is missing")))?;
    Ok(row[0].integer()? - count + 1)
}
