//! One process at a time works on a model.

use std::fs::{self, File, TryLockError};
use std::thread;
use std::time::Duration;

use crate::error::StoreError;
use crate::home::Layout;
use crate::name::ModelName;
use crate::progress::{Event, Progress};

const POLL: Duration = Duration::from_millis(50);

/// Held until dropped; the system releases it when the process dies.
///
/// The lock file itself stays: removing it would let a waiting process lock a file that nobody else can find.
#[derive(Debug)]
pub(crate) struct ModelLock {
    file: File,
}

impl ModelLock {
    /// Waits for whoever holds the lock, and says so once.
    pub(crate) fn wait(
        layout: &Layout,
        name: &ModelName,
        progress: &mut dyn Progress,
    ) -> Result<ModelLock, StoreError> {
        let mut told = false;
        loop {
            if let Some(lock) = ModelLock::try_take(layout, name)? {
                return Ok(lock);
            }
            if !told {
                told = true;
                progress.report(Event::WaitingForOtherProcess { name: name.to_string() });
            }
            if progress.cancelled() {
                return Err(StoreError::Cancelled);
            }
            thread::sleep(POLL);
        }
    }

    /// `None` when somebody else holds it.
    pub(crate) fn try_take(layout: &Layout, name: &ModelName) -> Result<Option<ModelLock>, StoreError> {
        let path = layout.lock(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
        }
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(ModelLock { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(StoreError::io("lock", &path)(error)),
        }
    }
}

impl Drop for ModelLock {
    /// Closing the file would do, but not at once: a child process has it too until it begins its own program.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}
