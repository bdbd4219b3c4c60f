//! A lock file that every user of the memory holds. SQLite lets several programs share the file; replacing it or changing its
//! key needs the file for one alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::{MemoryError, Result};

/// Held while the file is in use; released with the process at the latest.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    memory: PathBuf,
}

impl Lock {
    /// Locks the file for shared use.
    pub fn shared(memory: &Path) -> Result<Self> {
        let lock = Self::open(memory)?;
        match lock.file.try_lock_shared() {
            Ok(()) => Ok(lock),
            Err(error) => Err(lock.refused(error)),
        }
    }

    /// Locks the file for exclusive use, or fails if it is in use.
    pub fn exclusive(memory: &Path) -> Result<Self> {
        let lock = Self::open(memory)?;
        lock.be_alone()?;
        Ok(lock)
    }

    /// Turns a shared lock into an exclusive one, or fails if another program uses the file.
    pub fn be_alone(&self) -> Result<()> {
        // Not every system can convert a lock.
        self.file.unlock().map_err(MemoryError::io(&self.memory))?;
        match self.file.try_lock() {
            Ok(()) => Ok(()),
            Err(error) => {
                self.share()?;
                Err(self.refused(error))
            }
        }
    }

    /// Turns an exclusive lock back into a shared one.
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

impl Drop for Lock {
    /// Closing the file would do, but not at once: a child process has it too until it begins its own program.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}
