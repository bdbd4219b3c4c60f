//! Copies of the file, and another key for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use rusqlite::backup::{Backup, Progress};
use rusqlite::{Connection, OpenFlags};

use super::lock::Lock;
use super::{Embedded, connect};
use crate::error::{MemoryError, Result};
use crate::key::{Key, KeySource};

/// Pages that are copied at a time, between which others may write.
const PAGES_AT_ONCE: i32 = 1000;

impl Embedded {
    /// Copies the memory as it is now, while it is used. The copy has the same key. `progress` hears of pages: copied, all.
    pub(crate) fn backup(&self, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        if to.exists() {
            let problem = format!("{} is there already; name a file that is not", to.display());
            return Err(MemoryError::invalid("backup", problem));
        }
        // It appears under its name when it is complete.
        let beside = to.with_extension("partial");
        remove_if_there(&beside)?;
        let key = self.key().clone();
        let copied = self.with_reader(|source| {
            // One state of the memory is copied, however much is written meanwhile: SQLite would begin anew each time.
            source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_master;")?;
            let copied = copy(source, &beside, &key, progress);
            source.execute_batch("COMMIT")?;
            copied
        });
        let renamed = copied.and_then(|()| fs::rename(&beside, to).map_err(MemoryError::io(to)));
        if renamed.is_err() {
            remove_if_there(&beside)?;
        }
        renamed
    }

    /// Encrypts everything anew, alone: others would go on with the old key. If this is cut off, either the old key opens it or the one that is staged.
    pub(crate) fn rekey(&self, new: &Key, source: &KeySource) -> Result<()> {
        self.lock.be_alone()?;
        let changed = self.change_key(new, source);
        self.lock.share()?;
        changed
    }

    fn change_key(&self, new: &Key, source: &KeySource) -> Result<()> {
        source.stage(new)?;
        let writer = self.writer();
        // Our own, too.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // Every page is written: as one transaction with a journal, which a log beside the file would only copy.
        writer.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE;")?;
        writer.execute_batch(&format!("PRAGMA rekey = \"x'{}'\"", new.hex().as_str()))?;
        writer.execute_batch("PRAGMA journal_mode = WAL;")?;
        *self.key() = new.clone();
        source.promote()
    }

    /// Reads every page, also those that hold nothing at present: each is authenticated as it is read.
    pub(crate) fn check(&self) -> Result<()> {
        self.with_reader(|reader| {
            reader.query_row("SELECT sum(length(data)) FROM sqlite_dbpage", [], |_| Ok(()))?;
            let verdict: String = reader.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if verdict == "ok" { Ok(()) } else { Err(MemoryError::Damaged(verdict)) }
        })
    }

    /// What the index takes in memory.
    pub(crate) fn index_bytes(&self) -> usize {
        self.index.memory_bytes()
    }
}

/// Puts a backup in the place of a memory that nobody uses. It is opened first, so that nothing is lost for a file that is
/// of no use; what was there before is kept beside it, with what its journal holds.
pub(crate) fn restore(from: &Path, to: &Path, key: &Key) -> Result<()> {
    let _alone = Lock::exclusive(to)?;
    fs::metadata(from).map_err(MemoryError::io(from))?;
    let beside = to.with_extension("restoring");
    remove_if_there(&beside)?;
    let ready = fs::copy(from, &beside)
        .and_then(|_| File::open(&beside)?.sync_all())
        .map_err(MemoryError::io(from))
        .and_then(|()| check_file(&beside, key, from));
    if let Err(error) = ready {
        remove_if_there(&beside)?;
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

/// Gives a memory and its journal another name, under which they can be opened.
fn set_aside(memory: &Path, key: &Key) -> Result<()> {
    if !memory.exists() {
        return Ok(());
    }
    // What a killed program left in the journal goes into the file, unless the key is another one. Either way it is kept.
    let open = connect::unlocked(memory, OpenFlags::default(), key, memory);
    let emptied = open.and_then(|open| Ok(open.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?));
    if let Err(error) = emptied {
        tracing::warn!("the replaced memory is kept as it is, with its journal: {error}");
    }
    let aside = connect::files(&unused(memory));
    // The journal first: a memory without its last entries is better than one with those of another.
    for (file, aside) in connect::files(memory).iter().zip(&aside).rev() {
        match fs::rename(file, aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(MemoryError::io(file)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// A name that no memory that was replaced before has.
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

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(MemoryError::io(path)(error)),
        _ => Ok(()),
    }
}
