//! The memory in one encrypted file: SQLite with pages in SQLCipher's format, and our own vector index.
//!
//! One connection writes, others read; readers never wait. Vectors are stored quantized. The index over them is in memory;
//! its finished segments are saved in the file, so that it need not be rebuilt at the next start.

mod backup;
mod connect;
mod index;
mod lock;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use crate::database::{Database, Neighbor, Reading, StoredVector, Value, Writing};
use crate::error::{MemoryError, Result};
use crate::key::{Key, KeySource};
use crate::schema;
use crate::vector::Filter;

pub(crate) use backup::restore;
pub use connect::Durability;
use index::{Change, Index};
use lock::Lock;

/// Maximum number of idle read connections that are kept open.
const IDLE_READERS_MAX: usize = 4;

/// How long closing the memory waits for another program that writes.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

/// Frees 4000 pages of 4 KiB at a time, few enough that nobody has to wait.
const VACUUM: &str = "PRAGMA incremental_vacuum(4000)";

#[derive(Debug)]
pub struct Embedded {
    path: PathBuf,
    key: Mutex<Key>,
    key_source: KeySource,
    durability: Durability,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
    index: Index,
    /// Dropped last, so that it is released after the file is closed.
    lock: Lock,
}

impl Embedded {
    /// Opens the file, creates it if it does not exist, and migrates it to this version's schema.
    pub(crate) fn open(path: &Path, key_source: KeySource, dimension: usize, durability: Durability) -> Result<Self> {
        let key = key_source.key_of(path)?;
        let lock = Lock::shared(path)?;
        let (key, writer) = unlock(path, key, &key_source, durability)?;
        let embedded = Self {
            path: path.to_owned(),
            key: Mutex::new(key),
            key_source,
            durability,
            writer: Mutex::new(writer),
            readers: Mutex::default(),
            index: Index::new(dimension),
            lock,
        };
        let vectors = index::TABLES.map(str::to_owned);
        let dialect = schema::Dialect { id: "INTEGER PRIMARY KEY", vectors: &vectors };
        embedded.write(&mut |writing| schema::migrate(writing, dialect))?;
        Ok(embedded)
    }

    fn writer(&self) -> MutexGuard<'_, Connection> {
        // A transaction left open by a panic is rolled back when the next one starts.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(&self) -> Result<Connection> {
        let idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(reader) => Ok(reader),
            None => connect::open(&self.path, &self.key(), self.durability),
        }
    }

    fn key(&self) -> MutexGuard<'_, Key> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a read connection to `work`.
    fn with_reader<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let reader = self.reader()?;
        let result = work(&reader);
        let mut idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_READERS_MAX {
            idle.push(reader);
        }
        result
    }
}

impl Database for Embedded {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    /// Ignores the patience: a file is read at once, unless another program has locked it, and waiting for that is limited
    /// to `connect::PATIENCE` anyway.
    fn read(&self, _: Duration, work: &mut dyn FnMut(&mut dyn Reading) -> Result<()>) -> Result<()> {
        self.with_reader(|reader| {
            // Everything is read from one snapshot.
            reader.execute_batch("BEGIN")?;
            let result = work(&mut ReadingNow(reader));
            reader.execute_batch("COMMIT")?;
            result
        })
    }

    fn write(&self, work: &mut dyn FnMut(&mut dyn Writing) -> Result<()>) -> Result<()> {
        let writer = self.writer();
        if !writer.is_autocommit() {
            writer.execute_batch("ROLLBACK")?;
        }
        writer.execute_batch("BEGIN IMMEDIATE")?;
        let mut transaction = Transaction { connection: &writer, changes: Vec::new() };
        let result = work(&mut transaction);
        let changes = transaction.changes;
        match result.and_then(|()| writer.execute_batch("COMMIT").map_err(MemoryError::from)) {
            // Still under the writer's lock, so that the index is changed in the order of the transactions.
            Ok(()) => self.index.apply(changes),
            Err(error) => {
                writer.execute_batch("ROLLBACK").ok();
                Err(error)
            }
        }
    }

    fn nearest(&self, vector: &[f32], count: usize, filter: &Filter) -> Result<Vec<Neighbor>> {
        self.index.load(|| self.writer())?;
        self.index.nearest(vector, count, filter)
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn encryption(&self) -> String {
        "everything in the file, its journal and its backups, by RuvLLM (SQLCipher, AES-256); the key lies elsewhere"
            .to_owned()
    }

    fn bytes(&self) -> Result<u64> {
        connect::files(&self.path).iter().try_fold(0, |sum, file| match std::fs::metadata(file) {
            Ok(metadata) => Ok(sum + metadata.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(sum),
            Err(error) => Err(MemoryError::io(file)(error)),
        })
    }

    fn used_bytes(&self) -> Result<u64> {
        self.with_reader(|reader| {
            let number = |pragma: &str| reader.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0));
            let pages = number("page_count")? - number("freelist_count")?;
            Ok(u64::try_from(pages).unwrap_or(0) * connect::PAGE_BYTES)
        })
    }

    fn tidy(&self) -> Result<()> {
        let writer = self.writer();
        self.index.catch_up(&writer)?;
        self.index.save(&writer, index::Saved::Finished)?;
        // The vacuum frees pages as its rows are read.
        for pragma in [VACUUM, "PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)"] {
            let mut statement = writer.prepare(pragma)?;
            let mut rows = statement.query([])?;
            while rows.next()?.is_some() {}
        }
        Ok(())
    }

    /// Reads every page, also the unused ones: each is authenticated when it is read.
    fn check(&self) -> Result<()> {
        self.with_reader(|reader| {
            reader.query_row("SELECT sum(length(data)) FROM sqlite_dbpage", [], |_| Ok(()))?;
            let verdict: String = reader.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if verdict == "ok" { Ok(()) } else { Err(MemoryError::Damaged(verdict)) }
        })
    }

    fn index_bytes(&self) -> usize {
        self.index.memory_bytes()
    }

    fn backup(&self, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.copy_to(to, progress)
    }

    fn rekey(&self, new: Option<Key>) -> Result<()> {
        let new = match (new, &self.key_source) {
            (Some(new), _) => new,
            (None, KeySource::File(_)) => Key::random()?,
            (None, KeySource::Environment(_) | KeySource::Command(_)) => {
                return Err(MemoryError::invalid("key", "it is kept elsewhere: give the new one too"));
            }
        };
        self.change_key(&new)
    }
}

/// Opens the file with its key. After a rekey that was interrupted, that may be the staged one: the rekey is completed then.
fn unlock(path: &Path, key: Key, source: &KeySource, durability: Durability) -> Result<(Key, Connection)> {
    match connect::open(path, &key, durability) {
        Err(MemoryError::WrongKey { path: wrong }) => {
            let staged = source.staged()?.ok_or(MemoryError::WrongKey { path: wrong })?;
            let writer = connect::open(path, &staged, durability)?;
            source.promote()?;
            Ok((staged, writer))
        }
        opened => Ok((key, opened?)),
    }
}

impl Drop for Embedded {
    /// Saves the index for the next start. If that fails, the index is rebuilt then, and nothing is lost.
    fn drop(&mut self) {
        let writer = self.writer();
        // Does not wait long for another program that writes.
        writer.busy_timeout(LAST_PATIENCE).ok();
        if let Err(error) = self.index.save(&writer, index::Saved::Everything) {
            tracing::warn!("the vector index was not saved; the next start takes longer: {error}");
        }
    }
}

struct ReadingNow<'a>(&'a Connection);

struct Transaction<'a> {
    connection: &'a Connection,
    changes: Vec<Change>,
}

impl Reading for ReadingNow<'_> {
    fn rows(&mut self, sql: &str, params: &[Value], each: &mut dyn FnMut(&[Value]) -> Result<()>) -> Result<()> {
        rows(self.0, sql, params, each)
    }
}

impl Reading for Transaction<'_> {
    fn rows(&mut self, sql: &str, params: &[Value], each: &mut dyn FnMut(&[Value]) -> Result<()>) -> Result<()> {
        rows(self.connection, sql, params, each)
    }
}

impl Writing for Transaction<'_> {
    fn as_reading(&mut self) -> &mut dyn Reading {
        self
    }

    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64> {
        let changed = self.connection.prepare_cached(sql)?.execute(params_from_iter(params))?;
        Ok(changed as u64)
    }

    fn put_vector(&mut self, vector: StoredVector) -> Result<()> {
        index::put(self.connection, &vector)?;
        self.changes.push(Change::Put(vector));
        Ok(())
    }

    fn remove_vectors(&mut self, ids: &[i64]) -> Result<()> {
        for id in ids {
            index::remove(self.connection, *id)?;
            self.changes.push(Change::Remove(*id));
        }
        Ok(())
    }

    fn remove_all_vectors(&mut self) -> Result<()> {
        index::remove_all(self.connection)?;
        self.changes.push(Change::Clear);
        Ok(())
    }
}

fn rows(
    connection: &Connection,
    sql: &str,
    params: &[Value],
    each: &mut dyn FnMut(&[Value]) -> Result<()>,
) -> Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query(params_from_iter(params))?;
    let mut values = Vec::with_capacity(columns);
    while let Some(row) = rows.next()? {
        values.clear();
        for column in 0..columns {
            values.push(value(row.get_ref(column)?)?);
        }
        each(&values)?;
    }
    Ok(())
}

fn value(value: ValueRef<'_>) -> Result<Value> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => Value::Integer(value),
        ValueRef::Real(value) => Value::Real(value),
        ValueRef::Text(text) => {
            let text = std::str::from_utf8(text).map_err(|_| MemoryError::damaged("a text column is not UTF-8"))?;
            Value::Text(text.to_owned())
        }
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    })
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(value) => ValueRef::Integer(*value),
            Self::Real(value) => ValueRef::Real(*value),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
