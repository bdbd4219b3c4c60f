//! Backup, restore and rekey of the file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use rusqlite::backup::{Backup, Progress};
use rusqlite::{Connection, OpenFlags};

use super::lock::Lock;
use super::{Embedded, connect};
use crate::error::{MemoryError, Result};
use crate::key::Key;

/// Pages copied at a time; others may write in between.
const PAGES_AT_ONCE: i32 = 1000;

impl Embedded {
    /// Copies the memory as it is now, while it is in use. The copy has the same key.
    pub(super) fn copy_to(&self, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        if to.exists() {
            let problem = format!("{} exists already; name a file that does not", to.display());
            return Err(MemoryError::invalid("backup", problem));
        }
        // It gets its name when it is complete.
        let beside = to.with_extension("partial");
        remove_if_exists(&beside)?;
        let key = self.key().clone();
        let copied = self.with_reader(|source| {
            // Pins a snapshot: SQLite would start over whenever something is written.
            source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_master;")?;
            let copied = copy(source, &beside, &key, progress);
            source.execute_batch("COMMIT")?;
            copied
        });
        let renamed = copied.and_then(|()| fs::rename(&beside, to).map_err(MemoryError::io(to)));
        if renamed.is_err() {
            remove_if_exists(&beside)?;
        }
        renamed
    }

    /// Encrypts everything with another key. Needs the file for itself: others would go on with the old key.
    pub(super) fn change_key(&self, new: &Key) -> Result<()> {
        self.lock.be_alone()?;
        let changed = self.change_key_alone(new);
        self.lock.share()?;
        changed
    }

    /// If this is interrupted, either the old key opens the file or the staged one.
    fn change_key_alone(&self, new: &Key) -> Result<()> {
        self.key_source.stage(new)?;
        let writer = self.writer();
        // Our own readers have the old key, too.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // Every page is rewritten in one transaction. A rollback journal does that in place; a WAL would double the file.
        writer.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE;")?;
        writer.execute_batch(&format!("PRAGMA rekey = \"x'{}'\"", new.hex().as_str()))?;
        writer.execute_batch("PRAGMA journal_mode = WAL;")?;
        *self.key() = new.clone();
        self.key_source.promote()
    }
}

/// Replaces a memory that nobody uses by a backup. The backup is checked first, so that nothing is given up for a file that
/// cannot be used; the replaced memory is kept beside it, with the contents of its journal.
pub(crate) fn restore(from: &Path, to: &Path, key: &Key) -> Result<()> {
    let _alone = Lock::exclusive(to)?;
    fs::metadata(from).map_err(MemoryError::io(from))?;
    let beside = to.with_extension("restoring");
    remove_if_exists(&beside)?;
    let ready = fs::copy(from, &beside)
        .and_then(|_| File::open(&beside)?.sync_all())
        .map_err(MemoryError::io(from))
        .and_then(|()| check_file(&beside, key, from));
    if let Err(error) = ready {
        remove_if_exists(&beside)?;
        return Err(error);
    }
    set_aside(to, key)?;
    fs::rename(&beside, to).map_err(MemoryError::io(to))
}

fn check_file(file: &Path, key: &Key, named: &Path) -> Result<()> {
    let copy = connect::unlocked(file, OpenFlags::default(), key, named)?;
    let verdict: String = copy.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(MemoryError::damaged(format!("the backup: {verdict}"))) }
}

/// Renames a memory together with its journal, so that it can still be opened.
fn set_aside(memory: &Path, key: &Key) -> Result<()> {
    if !memory.exists() {
        return Ok(());
    }
    // A journal left by a killed program goes into the file, unless the key differs. Either way it is kept.
    let open = connect::unlocked(memory, OpenFlags::default(), key, memory);
    let emptied = open.and_then(|open| Ok(open.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?));
    if let Err(error) = emptied {
        tracing::warn!("the replaced memory is kept as it is, with its journal: {error}");
    }
    let aside = connect::files(&unused(memory));
    // The journal first: better a memory without its last entries than one with the journal of another.
    for (file, aside) in connect::files(memory).iter().zip(&aside).rev() {
        match fs::rename(file, aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(MemoryError::io(file)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Returns a file name that no replaced memory has yet.
fn unused(memory: &Path) -> PathBuf {
    let mut names = (2..).map(|count| memory.with_extension(format!("replaced-{count}")));
    let first = memory.with_extension("replaced");
    if first.exists() { names.find(|name| !name.exists()).unwrap_or(first) } else { first }
}

fn copy(source: &Connection, to: &Path, key: &Key, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let mut target = connect::open(to, key, connect::Durability::Process)?;
    target.execute_batch("PRAGMA journal_mode = DELETE;")?;
    let backup = Backup::new(source, &mut target)?;
    loop {
        let step = backup.step(PAGES_AT_ONCE)?;
        let Progress { remaining, pagecount } = backup.progress();
        progress((pagecount - remaining).max(0) as u64, pagecount.max(0) as u64);
        match step {
            rusqlite::backup::StepResult::Done => break,
            rusqlite::backup::StepResult::More => {}
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    drop(backup);
    Ok(target.execute_batch("PRAGMA journal_mode = DELETE;")?)
}

fn remove_if_exists(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(MemoryError::io(path)(error)),
        _ => Ok(()),
    }
}
