//! The interface to the two databases: SQL that both understand, and a method for each thing that differs.
//!
//! Statements are written once, with `$1`, `$2` in the order of their first appearance, and with the types `BIGINT`,
//! `DOUBLE PRECISION`, `TEXT` and `BYTEA` only.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::error::{MemoryError, Result};
use crate::key::Key;
use crate::vector::{Facets, Filter, VectorCode};

/// How long a statement may take where nobody waits for its result.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A parameter or a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A vector as it is stored, one for each part of an entry.
#[derive(Clone, Debug)]
pub struct StoredVector {
    pub id: i64,
    pub code: VectorCode,
    pub facets: Facets,
}

/// A vector found by similarity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbor {
    pub id: i64,
    pub similarity: f32,
}

pub trait Reading {
    /// Passes each row to `each`.
    fn rows(&mut self, sql: &str, params: &[Value], each: &mut dyn FnMut(&[Value]) -> Result<()>) -> Result<()>;
}

/// A transaction.
pub trait Writing: Reading {
    fn as_reading(&mut self) -> &mut dyn Reading;
    /// Returns the number of rows changed.
    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64>;
    fn put_vector(&mut self, vector: StoredVector) -> Result<()>;
    fn remove_vectors(&mut self, ids: &[i64]) -> Result<()>;
    fn remove_all_vectors(&mut self) -> Result<()>;
}

pub trait Database: Send + Sync + fmt::Debug {
    /// Names the database for people to read.
    fn place(&self) -> String;
    /// Fails if a statement takes longer than `patience`.
    fn read(&self, patience: Duration, work: &mut dyn FnMut(&mut dyn Reading) -> Result<()>) -> Result<()>;
    fn write(&self, work: &mut dyn FnMut(&mut dyn Writing) -> Result<()>) -> Result<()>;
    fn nearest(&self, vector: &[f32], count: usize, filter: &Filter) -> Result<Vec<Neighbor>>;
    /// Returns whether several processes can use it at once.
    fn is_shared(&self) -> bool;
    /// Says what is encrypted, by whom, and what is not. For people to read.
    fn encryption(&self) -> String;
    /// Returns the size on disk, with everything that belongs to the database.
    fn bytes(&self) -> Result<u64>;
    /// Returns how much of that is in use, without freed space that is still on disk. May be an estimate.
    fn used_bytes(&self) -> Result<u64>;
    /// Frees space and saves what makes the next start faster. Called by maintenance.
    fn tidy(&self) -> Result<()>;
    /// Reads and checks everything, where the database does not do that itself.
    fn check(&self) -> Result<()>;
    /// Returns the memory that a vector index takes in this process.
    fn index_bytes(&self) -> usize;
    /// Copies the database to a file. `progress` receives the number of pages copied and of all pages.
    fn backup(&self, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()>;
    /// Encrypts the database with another key: a random one if none is given.
    fn rekey(&self, new: Option<Key>) -> Result<()>;
}

/// Returns the first row, if there is one.
pub(crate) fn first_row<R: Reading + ?Sized>(
    database: &mut R,
    sql: &str,
    params: &[Value],
) -> Result<Option<Vec<Value>>> {
    let mut found = None;
    database.rows(sql, params, &mut |row| {
        found.get_or_insert_with(|| row.to_vec());
        Ok(())
    })?;
    Ok(found)
}

/// Runs a read that returns a value.
pub(crate) fn reading<T>(database: &dyn Database, work: impl Fn(&mut dyn Reading) -> Result<T>) -> Result<T> {
    reading_within(database, PATIENCE, work)
}

/// Runs a read that returns a value, and fails if a statement takes longer than `patience`.
pub(crate) fn reading_within<T>(
    database: &dyn Database,
    patience: Duration,
    work: impl Fn(&mut dyn Reading) -> Result<T>,
) -> Result<T> {
    let mut result = None;
    database.read(patience, &mut |reading| {
        result = Some(work(reading)?);
        Ok(())
    })?;
    result.ok_or_else(|| MemoryError::damaged("a read was not executed"))
}

/// Runs a transaction that returns a value.
pub(crate) fn writing<T>(database: &dyn Database, mut work: impl FnMut(&mut dyn Writing) -> Result<T>) -> Result<T> {
    let mut result = None;
    database.write(&mut |writing| {
        result = Some(work(writing)?);
        Ok(())
    })?;
    result.ok_or_else(|| MemoryError::damaged("a transaction was not executed"))
}

impl Value {
    pub(crate) fn integer(&self) -> Result<i64> {
        match self {
            Self::Integer(value) => Ok(*value),
            other => Err(other.not_a("whole number")),
        }
    }

    pub(crate) fn real(&self) -> Result<f64> {
        match self {
            Self::Real(value) => Ok(*value),
            Self::Integer(value) => Ok(*value as f64),
            other => Err(other.not_a("number")),
        }
    }

    pub(crate) fn as_text(&self) -> Result<&str> {
        match self {
            Self::Text(value) => Ok(value),
            other => Err(other.not_a("text")),
        }
    }

    pub(crate) fn as_text_owned(&self) -> Result<String> {
        self.as_text().map(str::to_owned)
    }

    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        match self {
            Self::Bytes(value) => Ok(value),
            other => Err(other.not_a("byte string")),
        }
    }

    /// Returns `None` for null.
    pub(crate) fn optional<T>(&self, read: impl FnOnce(&Self) -> Result<T>) -> Result<Option<T>> {
        if *self == Self::Null { Ok(None) } else { read(self).map(Some) }
    }

    /// Names the kind of the value, never its contents.
    fn not_a(&self, expected: &str) -> MemoryError {
        let got = match self {
            Self::Null => "nothing",
            Self::Integer(_) => "a whole number",
            Self::Real(_) => "a number",
            Self::Text(_) => "a text",
            Self::Bytes(_) => "a byte string",
        };
        MemoryError::damaged(format!("a column holds {got} where a {expected} was expected"))
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(value)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
