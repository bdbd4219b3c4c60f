//! Errors of a memory, with the place and the remedy.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;

use crate::vector::VectorError;

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error(
        "the key does not open the memory at {path}: it was encrypted with another one; give the right key, or restore \
         a backup with its key"
    )]
    WrongKey { path: PathBuf },
    #[error(
        "the memory at {path} is encrypted and its key file {key} is missing; put it back, or give the key in \
         RUVLLM_MEMORY_KEY"
    )]
    KeyMissing { path: PathBuf, key: PathBuf },
    #[error("{source_name} does not hold a key of 64 hexadecimal digits")]
    KeyMalformed { source_name: String },
    #[error("the command for the memory's key failed: {0}")]
    KeyCommand(String),
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("the memory is damaged: {0}; restore a backup, or remove it to begin anew")]
    Damaged(String),
    #[error("the memory was written by a newer RuvLLM (schema {found}, this one knows {known}); use that one")]
    NewerSchema { found: i64, known: i64 },
    #[error(
        "the memory holds embeddings of {stored:?}, which cannot be compared with those of {given:?}; forget \
         them with `ruvllm memory forget-embeddings`, or go on with them"
    )]
    OtherEmbedding { stored: String, given: String },
    #[error(
        "the worker at {address} shares this memory and serves another file as {model:?}; serve the same file, or give \
         one of them a memory of its own (--memory-postgres, --memory-folder)"
    )]
    OtherModel { model: String, address: String },
    #[error("{field}: {problem}")]
    Invalid { field: &'static str, problem: String },
    #[error("there is no {kind} {name:?}{}", if *.is_tenants { " of this tenant" } else { "" })]
    NotFound { kind: &'static str, name: String, is_tenants: bool },
    #[error("{0} is not possible with the memory in a server database; use the database's own means")]
    NotOnServer(&'static str),
    #[error("the thread that writes the memory cannot be started: {0}")]
    Thread(io::Error),
    #[error("no database: {0}")]
    Connect(String),
    #[error("the database does not answer at present ({0}); try again later")]
    Unavailable(String),
    #[error("the database did not say whether it stored a transaction: {0}")]
    Doubtful(String),
    #[error(
        "the memory at {path} is in use by another program; stop `ruvllm serve`, or whatever uses it, and try again"
    )]
    InUse { path: PathBuf },
    #[error(transparent)]
    Vector(#[from] VectorError),
    #[error("the database: {0}")]
    Sqlite(rusqlite::Error),
    #[error("the database: {}", with_cause(.0))]
    Postgres(tokio_postgres::Error),
}

pub type Result<T> = std::result::Result<T, MemoryError>;

impl MemoryError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }

    /// Reports a session whose messages cannot be parsed.
    pub fn unreadable_session(name: &str) -> Self {
        Self::damaged(format!("the messages of the session {name:?} cannot be read"))
    }

    /// Returns whether the same operation may succeed later: the database is unavailable or busy.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Unavailable(_) | Self::Doubtful(_) => true,
            Self::Sqlite(error) => error.sqlite_error_code().is_some_and(|code| {
                use ErrorCode::{CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, SystemIoFailure};
                matches!(code, CannotOpen | DatabaseBusy | DatabaseLocked | DiskFull | SystemIoFailure)
            }),
            // SQLSTATE classes of transient errors: connections, conflicts, resources, shutdowns.
            Self::Postgres(error) => match error.code() {
                Some(code) => ["08", "40", "53", "55", "57"].iter().any(|class| code.code().starts_with(class)),
                None => true,
            },
            _ => false,
        }
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }

    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid { field, problem: problem.into() }
    }
}

impl From<rusqlite::Error> for MemoryError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // Pages are authenticated: one with a changed byte cannot be read.
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::damaged(error.to_string()),
            _ => Self::Sqlite(error),
        }
    }
}

impl From<tokio_postgres::Error> for MemoryError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

/// Describes an error with its cause: by itself, the client says only "db error" or "error performing TLS handshake".
pub(crate) fn with_cause(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.to_string();
    }
    let Some(cause) = error.source() else { return error.to_string() };
    let is_certificate = cause.to_string().contains("certificate");
    let remedy = if is_certificate { "; name a file with the certificate to trust in SSL_CERT_FILE" } else { "" };
    format!("{error}: {cause}{remedy}")
}
