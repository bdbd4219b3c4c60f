//! The memory in a PostgreSQL database with pgvector, which several machines can share.

mod connect;
mod connection;
mod outage;

use std::error::Error;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use connect::Connector;
use connection::Connection;
use outage::Outage;
use tokio_postgres::Row;
use tokio_postgres::config::Host;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::database::{Database, Neighbor, PATIENCE, Reading, StoredVector, Value, Writing};
use crate::error::{MemoryError, Result};
use crate::key::Key;
use crate::schema;
use crate::vector::{FACETS, Filter, VectorCode};
use crate::witness::ENTRY_BYTES;

/// Maximum number of idle connections that are kept open.
const IDLE_MAX: usize = 8;

/// Serialises the migrations of several machines that start at once.
const MIGRATION_LOCK: i64 = 0x7275_766c;

pub struct Postgres {
    connector: Connector,
    idle: Mutex<Vec<Connection>>,
    outage: Outage,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Postgres").field(&self.place()).finish()
    }
}

impl Postgres {
    /// `url` is `postgres://user:password@host/database`; pgvector must be available there.
    pub(crate) fn open(url: &str, dimension: usize) -> Result<Self> {
        let postgres = Self { connector: Connector::new(url)?, idle: Mutex::default(), outage: Outage::default() };
        let facets: Vec<String> = (0..FACETS).map(|facet| format!("f{facet} BIGINT NOT NULL")).collect();
        let vectors = [
            "CREATE EXTENSION IF NOT EXISTS vector".to_owned(),
            format!(
                "CREATE TABLE vectors (id BIGINT PRIMARY KEY, code BYTEA NOT NULL, embedding vector({dimension}) NOT NULL, {})",
                facets.join(", ")
            ),
            "CREATE INDEX vectors_by_meaning ON vectors USING hnsw (embedding vector_cosine_ops) WITH (m = 32)"
                .to_owned(),
            "CREATE INDEX vectors_by_tenant ON vectors (f1)".to_owned(),
        ];
        let dialect = schema::Dialect { id: "BIGINT PRIMARY KEY", vectors: &vectors };
        postgres.write(&mut |writing| {
            writing.rows("SELECT pg_advisory_xact_lock($1)::text", &[MIGRATION_LOCK.into()], &mut |_| Ok(()))?;
            schema::migrate(writing, dialect)
        })?;
        Ok(postgres)
    }

    /// Returns a connection with a transaction begun. Some of the idle ones may have been closed in the meantime.
    fn begun(&self, patience: Duration) -> Result<Connection> {
        // A function, so that the lock is not held while the connection is tried.
        let kept = || self.idle().pop();
        while let Some(mut connection) = kept() {
            match connection.begin(patience) {
                Ok(()) => return Ok(connection),
                // The other idle ones would not answer either.
                Err(error @ MemoryError::Unavailable(_)) => {
                    self.idle().clear();
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        let mut connection = Connection::open(&self.connector, patience)?;
        connection.begin(patience)?;
        Ok(connection)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` in a transaction. A connection that has failed is not used again.
    fn in_transaction(
        &self,
        patience: Duration,
        work: &mut dyn FnMut(&mut Transaction<'_>) -> Result<()>,
    ) -> Result<()> {
        self.outage.enter(Instant::now())?;
        let done = self.begun(patience).and_then(|mut connection| {
            work(&mut Transaction(&mut connection))?;
            connection.commit()?;
            Ok(connection)
        });
        self.outage.note(&done, Instant::now());
        let connection = done?;
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(())
    }

    fn number(&self, sql: &str) -> Result<u64> {
        let mut number = 0;
        self.in_transaction(PATIENCE, &mut |transaction| {
            let rows = transaction.0.query(sql, &[])?;
            let found = rows.first().and_then(|row| row.get::<_, Option<i64>>(0)).unwrap_or(0);
            number = u64::try_from(found).unwrap_or(0);
            Ok(())
        })?;
        Ok(number)
    }
}

impl Database for Postgres {
    fn place(&self) -> String {
        let config = self.connector.config();
        let hosts: Vec<String> = config
            .get_hosts()
            .iter()
            .map(|host| match host {
                Host::Tcp(name) => name.clone(),
                #[cfg(unix)]
                Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        format!("PostgreSQL database {} at {}", config.get_dbname().unwrap_or("?"), hosts.join(", "))
    }

    fn read(&self, patience: Duration, work: &mut dyn FnMut(&mut dyn Reading) -> Result<()>) -> Result<()> {
        self.in_transaction(patience, &mut |transaction| work(transaction))
    }

    fn write(&self, work: &mut dyn FnMut(&mut dyn Writing) -> Result<()>) -> Result<()> {
        self.in_transaction(PATIENCE, &mut |transaction| work(transaction))
    }

    /// Searches by the index, and if too few of its results pass the filter, by comparing with all vectors that do.
    fn nearest(&self, vector: &[f32], count: usize, filter: &Filter) -> Result<Vec<Neighbor>> {
        let conditions = conditions(filter);
        let sql = format!(
            "SELECT id, 1 - (embedding <=> $1) FROM vectors WHERE {conditions} ORDER BY embedding <=> $1 LIMIT {count}"
        );
        let mut found = Vec::new();
        self.in_transaction(PATIENCE, &mut |transaction| {
            let dimension = transaction.dimension()?;
            let code = VectorCode::new(vector, dimension)?;
            let wanted = PgVector(floats(&code));
            let ef = (count * 4).clamp(64, 1000);
            for mode in [format!("SET LOCAL hnsw.ef_search = {ef}"), "SET LOCAL enable_indexscan = off".to_owned()] {
                transaction.0.run(&mode)?;
                let rows = transaction.0.query_once(&sql, &[&wanted])?;
                found = rows
                    .iter()
                    .map(|row| Neighbor { id: row.get(0), similarity: row.get::<_, f64>(1) as f32 })
                    .collect();
                if found.len() >= count {
                    break;
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn encryption(&self) -> String {
        let way = if self.connector.is_encrypted() {
            "the connection is encrypted (TLS)"
        } else {
            "the connection is not encrypted (it stays on this machine, or sslmode=disable)"
        };
        format!(
            "not by RuvLLM: the database server keeps texts, figures and embeddings as they are, and its disk and backups are for its operator to encrypt; {way}"
        )
    }

    fn bytes(&self) -> Result<u64> {
        self.number(
            "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c \
             WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace",
        )
    }

    /// Estimates from the entries: the tables themselves do not shrink when rows are deleted.
    fn used_bytes(&self) -> Result<u64> {
        self.number(&format!(
            "SELECT ((SELECT coalesce(sum(bytes) + sum(last - first + 1) * {ENTRY_BYTES}, 0) FROM batches) \
             + (SELECT coalesce(sum(bytes), 0) FROM session_heads) \
             + (SELECT coalesce(sum(bytes), 0) FROM trajectories))::bigint"
        ))
    }

    /// The database server does that itself.
    fn tidy(&self) -> Result<()> {
        Ok(())
    }

    /// The database server checks its own pages.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn index_bytes(&self) -> usize {
        0
    }

    fn backup(&self, _: &Path, _: &mut dyn FnMut(u64, u64)) -> Result<()> {
        Err(MemoryError::NotOnServer("a backup"))
    }

    fn rekey(&self, _: Option<Key>) -> Result<()> {
        Err(MemoryError::NotOnServer("another key"))
    }
}

/// Returns a filter as SQL, which contains nothing but numbers.
fn conditions(filter: &Filter) -> String {
    let mut sql = String::from("true");
    for (facet, (least, most)) in filter.ranges().iter().enumerate() {
        if *least > 0 {
            sql.push_str(&format!(" AND f{facet} >= {least}"));
        }
        if *most < u32::MAX {
            sql.push_str(&format!(" AND f{facet} <= {most}"));
        }
    }
    if let Some((facet, values)) = filter.one_of() {
        let values: Vec<String> = values.iter().map(u32::to_string).collect();
        sql.push_str(&if values.is_empty() {
            " AND false".to_owned()
        } else {
            format!(" AND f{facet} IN ({})", values.join(", "))
        });
    }
    sql
}

struct Transaction<'a>(&'a mut Connection);

impl Transaction<'_> {
    fn dimension(&mut self) -> Result<usize> {
        let sql = "SELECT atttypmod FROM pg_attribute WHERE attrelid = 'vectors'::regclass AND attname = 'embedding'";
        let rows = self.0.query(sql, &[])?;
        let row = rows.first().ok_or_else(|| MemoryError::damaged("the table of vectors is missing"))?;
        Ok(usize::try_from(row.get::<_, i32>(0)).unwrap_or_default())
    }
}

impl Reading for Transaction<'_> {
    fn rows(&mut self, sql: &str, params: &[Value], each: &mut dyn FnMut(&[Value]) -> Result<()>) -> Result<()> {
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        for row in self.0.query(sql, &params)? {
            let values = (0..row.len()).map(|column| value(&row, column)).collect::<Result<Vec<_>>>()?;
            each(&values)?;
        }
        Ok(())
    }
}

impl Writing for Transaction<'_> {
    fn as_reading(&mut self) -> &mut dyn Reading {
        self
    }

    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64> {
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        self.0.execute(sql, &params)
    }

    fn put_vector(&mut self, vector: StoredVector) -> Result<()> {
        let columns: Vec<String> = (0..FACETS).map(|facet| format!("f{facet}")).collect();
        let places: Vec<String> = (0..FACETS).map(|facet| format!("${}", facet + 4)).collect();
        let updates: Vec<String> = columns.iter().map(|column| format!("{column} = excluded.{column}")).collect();
        let sql = format!(
            "INSERT INTO vectors (id, code, embedding, {}) VALUES ($1, $2, $3, {}) ON CONFLICT (id) DO UPDATE SET \
             code = excluded.code, embedding = excluded.embedding, {}",
            columns.join(", "),
            places.join(", "),
            updates.join(", ")
        );
        let facets = vector.facets.0.map(i64::from);
        let (code, embedding) = (vector.code.to_bytes(), PgVector(floats(&vector.code)));
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&vector.id, &code, &embedding];
        params.extend(facets.iter().map(|facet| facet as &(dyn ToSql + Sync)));
        self.0.execute(&sql, &params).map(drop)
    }

    fn remove_vectors(&mut self, ids: &[i64]) -> Result<()> {
        self.0.execute("DELETE FROM vectors WHERE id = ANY($1)", &[&ids]).map(drop)
    }

    /// Takes no longer for more vectors.
    fn remove_all_vectors(&mut self) -> Result<()> {
        self.0.run("TRUNCATE vectors")
    }
}

fn value(row: &Row, column: usize) -> Result<Value> {
    let kind = row.columns()[column].type_();
    Ok(match *kind {
        Type::INT8 => row.try_get::<_, Option<i64>>(column)?.into(),
        Type::INT4 => row.try_get::<_, Option<i32>>(column)?.map(i64::from).into(),
        Type::FLOAT8 => row.try_get::<_, Option<f64>>(column)?.into(),
        Type::TEXT => row.try_get::<_, Option<String>>(column)?.into(),
        Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(column)?.into(),
        _ => return Err(MemoryError::damaged(format!("a column is of the type {kind}"))),
    })
}

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Integer(value) => value.to_sql(kind, out),
            Self::Real(value) => value.to_sql(kind, out),
            Self::Text(value) => value.to_sql(kind, out),
            Self::Bytes(value) => value.to_sql(kind, out),
        }
    }

    /// All columns have one of these types. The server refuses a value of another type than its column.
    fn accepts(kind: &Type) -> bool {
        matches!(*kind, Type::INT8 | Type::FLOAT8 | Type::TEXT | Type::BYTEA)
    }

    to_sql_checked!();
}

fn floats(code: &VectorCode) -> Vec<f32> {
    code.codes().iter().map(|value| f32::from(*value) * code.scale()).collect()
}

/// pgvector's binary format: the number of dimensions, two zero bytes, the floats; big-endian.
#[derive(Debug)]
struct PgVector(Vec<f32>);

impl ToSql for PgVector {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_u16(u16::try_from(self.0.len())?);
        out.put_u16(0);
        self.0.iter().for_each(|value| out.put_f32(*value));
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        kind.name() == "vector"
    }

    to_sql_checked!();
}
