//! Connections to the encrypted file.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{MemoryError, Result};
use crate::key::Key;

/// SQLCipher 4's default.
pub(super) const PAGE_BYTES: u64 = 4096;

/// How long a statement waits for another program that writes. The longest that a request may have to wait.
const PATIENCE: Duration = Duration::from_secs(2);

/// What stored data survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, however it ends. A power failure may lose the last second.
    #[default]
    Process,
    /// A power failure, too: every transaction waits for the disk.
    Power,
}

/// Returns the file and those that SQLite keeps beside it.
pub(super) fn files(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    })
}

pub(super) fn open(path: &Path, key: &Key, durability: Durability) -> Result<Connection> {
    private(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = unlocked(path, flags, key, path)?;
    let synchronous = match durability {
        Durability::Process => "NORMAL",
        Durability::Power => "FULL",
    };
    // What is deleted is overwritten, so that whoever has the key finds nothing of what was forgotten. The cache spares reading pages again: most of that time goes into checking their HMAC.
    connection.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; \
         PRAGMA synchronous = {synchronous}; PRAGMA cache_size = -4000; PRAGMA journal_size_limit = 16777216; \
         PRAGMA secure_delete = ON;"
    ))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Opens `file` and checks the key, which SQLite would do at the first use only. Errors call the file `named`.
pub(super) fn unlocked(file: &Path, flags: OpenFlags, key: &Key, named: &Path) -> Result<Connection> {
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.execute_batch(&format!("PRAGMA key = \"x'{}'\"", key.hex().as_str()))?;
    let first_page = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get::<_, i64>(0));
    match first_page {
        Ok(_) => Ok(connection),
        Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::NotADatabase => {
            Err(MemoryError::WrongKey { path: named.to_owned() })
        }
        Err(error) => Err(error.into()),
    }
}

/// Creates the file so that only its user may read it, although it is encrypted.
fn private(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(MemoryError::io(folder))?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(MemoryError::io(path)).map(drop)
}
