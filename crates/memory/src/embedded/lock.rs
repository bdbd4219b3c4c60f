//! Who uses the file. SQLite lets several programs read and write it; to put another file in its place, or to encrypt it anew,
//! one must be alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::{MemoryError, Result};

/// Held for as long as the file is used; ends with the process in any case.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    memory: PathBuf,
}

impl Lock {
    /// Uses the file together with others.
    pub fn shared(memory: &Path) -> Result<Self> {
        let lock = Self::open(memory)?;
        match lock.file.try_lock_shared() {
            Ok(()) => Ok(lock),
            Err(error) => Err(lock.refused(error)),
        }
    }

    /// Uses the file alone, or not at all.
    pub fn exclusive(memory: &Path) -> Result<Self> {
        let lock = Self::open(memory)?;
        lock.be_alone()?;
        Ok(lock)
    }

    /// Goes on alone, unless somebody else uses the file.
    pub fn be_alone(&self) -> Result<()> {
        // A lock is not turned into another one on every system.
        self.file.unlock().map_err(MemoryError::io(&self.memory))?;
        match self.file.try_lock() {
            Ok(()) => Ok(()),
            Err(error) => {
                self.share()?;
                Err(self.refused(error))
            }
        }
    }

    /// Lets others in again.
    pub fn share(&self) -> Result<()> {
        self.file.unlock().map_err(MemoryError::io(&self.memory))?;
        self.file.lock_shared().map_err(MemoryError::io(&self.memory))
    }

    fn open(memory: &Path) -> Result<Self> {
        let path = memory.with_extension("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(MemoryError::io(folder))?;
        }
        let file = options.open(&path).map_err(MemoryError::io(&path))?;
        Ok(Self { file, memory: memory.to_owned() })
    }

    fn refused(&self, error: TryLockError) -> MemoryError {
        match error {
            TryLockError::WouldBlock => MemoryError::InUse { path: self.memory.clone() },
            TryLockError::Error(error) => MemoryError::io(&self.memory)(error),
        }
    }
}
