//! Free space, and writes that survive a crash.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::StoreError;

/// Left free besides what a model needs: a file system filled to the last byte breaks other programs.
const RESERVE_BYTES: u64 = 16 << 20;

/// `folder` must exist. Where the system does not tell, the check passes and a full disk shows while writing.
pub(crate) fn require_space(folder: &Path, needed_bytes: u64) -> Result<(), StoreError> {
    match free_bytes(folder) {
        Some(free) if free < needed_bytes.saturating_add(RESERVE_BYTES) => Err(StoreError::DiskFull {
            path: folder.to_owned(),
            needed_bytes: needed_bytes.saturating_add(RESERVE_BYTES),
            free_bytes: Some(free),
        }),
        _ => Ok(()),
    }
}

#[cfg(unix)]
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Turns "no space left" into the error that says how much is needed; everything else stays an I/O error.
pub(crate) fn write_failed(path: &Path, needed_bytes: u64, source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let folder = path.parent().unwrap_or(path);
            StoreError::DiskFull { path: folder.to_owned(), needed_bytes, free_bytes: free_bytes(folder) }
        }
        _ => StoreError::io("write", path)(source),
    }
}

/// Readers see the old content or the new, never a mixture, also after a power cut.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    // Two who repair the same manifest, in one process or in two, keep out of each other's temporary file.
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("tmp{}-{number}", std::process::id()));
    let written = File::create(&temporary)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        write_failed(path, content.len() as u64, error)
    })?;
    sync_folder_of(path);
    Ok(())
}

/// Makes a rename durable. Best effort: not every system can sync a folder, and the files are checked when used.
pub(crate) fn sync_folder_of(path: &Path) {
    if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
}

pub(crate) fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_beyond_the_disk_names_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let error = require_space(folder.path(), u64::MAX / 2).unwrap_err();
        let StoreError::DiskFull { free_bytes, .. } = &error else { panic!("{error}") };
        assert!(error.to_string().contains(&free_bytes.unwrap().to_string()));
    }

    #[test]
    fn a_device_without_space_is_told_apart_from_other_faults() {
        let Ok(mut full) = fs::OpenOptions::new().write(true).open("/dev/full") else {
            eprintln!("skipped: this system has no /dev/full");
            return;
        };
        let error = full.write_all(b"x").unwrap_err();
        let error = write_failed(Path::new("/dev/full"), 77, error);
        assert!(matches!(error, StoreError::DiskFull { needed_bytes: 77, .. }), "{error}");
    }

    #[test]
    fn atomic_write_replaces_and_leaves_no_temporary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
