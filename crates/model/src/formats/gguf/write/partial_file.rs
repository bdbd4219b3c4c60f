//! A file that is not there until it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::WriteError;

/// Written beside its destination under another name, so that finishing is a rename within one file system.
#[derive(Debug)]
pub(super) struct PartialFile {
    file: Option<File>,
    path: PathBuf,
    destination: PathBuf,
    /// The size it will have, for the error message.
    file_bytes: u64,
}

impl PartialFile {
    pub fn create(destination: &Path, file_bytes: u64) -> Result<Self, WriteError> {
        let failed = |error| WriteError::Io { action: "create", path: destination.to_owned(), error };
        if destination.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        // Unique among the processes here and the files of this one.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = destination.with_file_name(format!(".ruvllm-{}-{count}.partial", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
        Ok(Self { file: Some(file), path, destination: destination.to_owned(), file_bytes })
    }

    /// Not buffered: callers write large pieces.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let file = self.file.as_mut().expect("open until finished");
        file.write_all(bytes).map_err(|error| self.failed("write", error))
    }

    pub fn finish(mut self) -> Result<(), WriteError> {
        let file = self.file.take().expect("open until finished");
        file.sync_all().map_err(|error| self.failed("write", error))?;
        // Some systems do not rename an open file.
        drop(file);
        fs::rename(&self.path, &self.destination).map_err(|error| self.failed("create", error))?;
        // The rename is durable once the folder is. Not every system can sync a folder.
        let folder = self.destination.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Ok(folder) = File::open(folder.unwrap_or(Path::new("."))) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Names the destination: the other name means nothing to the user.
    fn failed(&self, action: &'static str, error: io::Error) -> WriteError {
        let path = self.destination.clone();
        match error.kind() {
            io::ErrorKind::StorageFull => WriteError::DiskFull { path, file_bytes: self.file_bytes },
            _ => WriteError::Io { action, path, error },
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        drop(self.file.take());
        // After a rename there is nothing of that name.
        let _ = fs::remove_file(&self.path);
    }
}
