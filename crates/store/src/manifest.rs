//! The small JSON beside a model's files: what they are, where they came from, and how to notice that they have changed.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::digest::is_sha256_hex;
use crate::disk;
use crate::error::StoreError;
use crate::name::{ModelName, is_safe_file_path};

pub(crate) const FILE_NAME: &str = "manifest.json";

/// Far above any real manifest; a larger file is not one.
const BYTES_MAX: u64 = 64 * 1024;

/// What the store knows of a model on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub name: String,
    /// The one to open. Its fields stand beside the others: most models are one file.
    #[serde(flatten)]
    pub main: StoredFile,
    /// What the main file needs, such as a tokenizer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<StoredFile>,
    pub source: String,
    pub licence: Option<String>,
    pub pulled_at_unix_s: u64,
}

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Within the model's folder; with `/` where it lies in a folder of its own.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    /// Together with `bytes` the cheap check at every use; when it differs the whole file is hashed.
    pub mtime_unix_ns: u64,
}

impl Manifest {
    /// `None` when there is no manifest in `folder`.
    pub(crate) fn read(folder: &Path, name: &ModelName) -> Result<Option<Manifest>, StoreError> {
        let path = folder.join(FILE_NAME);
        let bad = |why: String| StoreError::BadManifest { path: path.clone(), why };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(bad(error.to_string())),
        };
        let mut text = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| bad(error.to_string()))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(bad(format!("it is larger than {BYTES_MAX} bytes")));
        }
        Manifest::parse(&text, name).map(Some).map_err(bad)
    }

    /// The manifest of a model of this name, or why the text is none.
    #[doc(hidden)]
    pub fn parse(text: &[u8], name: &ModelName) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match manifest.fault(name) {
            Some(why) => Err(why),
            None => Ok(manifest),
        }
    }

    /// A manifest is foreign bytes: its file names must not lead out of the folder.
    fn fault(&self, name: &ModelName) -> Option<String> {
        if self.name != name.as_str() {
            Some(format!("it is for `{}`", self.name.escape_debug()))
        } else if let Some(unsafe_one) = self.files().find(|stored| !is_safe_file_path(&stored.file)) {
            Some(format!("the file name `{}` is not allowed", unsafe_one.file.escape_debug()))
        } else if !self.files().all(|stored| is_sha256_hex(&stored.sha256)) {
            Some("sha256 is not 64 lower-case hex digits".to_owned())
        } else {
            None
        }
    }

    /// All files, the main one first.
    pub fn files(&self) -> impl Iterator<Item = &StoredFile> {
        std::iter::once(&self.main).chain(&self.beside)
    }

    pub(crate) fn files_mut(&mut self) -> impl Iterator<Item = &mut StoredFile> {
        std::iter::once(&mut self.main).chain(&mut self.beside)
    }

    /// Of all files together.
    pub fn bytes(&self) -> u64 {
        self.files().fold(0, |sum, stored| sum.saturating_add(stored.bytes))
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(FILE_NAME);
        let text = serde_json::to_vec_pretty(self).map_err(|error| StoreError::io("encode", &path)(error.into()))?;
        disk::write_atomically(&path, &text)
    }
}

impl StoredFile {
    pub(crate) fn path_in(&self, folder: &Path) -> PathBuf {
        folder.join(&self.file)
    }

    /// The cheap check.
    pub(crate) fn describes(&self, metadata: &Metadata) -> bool {
        metadata.is_file() && metadata.len() == self.bytes && mtime_unix_ns(metadata) == self.mtime_unix_ns
    }
}

/// Zero where the system keeps no times; the cheap check is then by size alone.
pub(crate) fn mtime_unix_ns(metadata: &Metadata) -> u64 {
    metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .and_then(|since| u64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}

pub(crate) fn metadata_of(path: &Path) -> Result<Option<Metadata>, StoreError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Manifest {
        Manifest {
            name: "toy".to_owned(),
            main: stored("toy.gguf"),
            beside: Vec::new(),
            source: "test".to_owned(),
            licence: None,
            pulled_at_unix_s: 1,
        }
    }

    fn stored(file: &str) -> StoredFile {
        StoredFile { file: file.to_owned(), bytes: 4, sha256: "0".repeat(64), mtime_unix_ns: 2 }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_a_manifest_that_stays_in_its_folder(file in ".{0,12}", cut in 0_usize..400, noise in any::<u8>()) {
            let folder = tempfile::tempdir().unwrap();
            let mut text = serde_json::to_vec(&Manifest { main: stored(&file), ..sample() }).unwrap();
            let at = cut % text.len();
            text[at] ^= noise;
            fs::write(folder.path().join(FILE_NAME), text).unwrap();
            if let Ok(Some(manifest)) = Manifest::read(folder.path(), &ModelName::parse("toy").unwrap()) {
                let path = manifest.main.path_in(folder.path());
                let within = path.strip_prefix(folder.path()).unwrap();
                prop_assert!(within.components().all(|part| matches!(part, std::path::Component::Normal(_))));
                prop_assert!(path.file_name().is_some_and(|name| name != FILE_NAME));
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let name = ModelName::parse("toy").unwrap();
        assert_eq!(Manifest::read(folder.path(), &name).unwrap(), None);
        for beside in [Vec::new(), vec![stored("config.json"), stored("pooling/config.json")]] {
            let manifest = Manifest { beside, ..sample() };
            manifest.write(folder.path()).unwrap();
            assert_eq!(Manifest::read(folder.path(), &name).unwrap(), Some(manifest));
        }
    }

    #[test]
    fn garbage_and_hostile_manifests_are_refused_with_their_path() {
        let folder = tempfile::tempdir().unwrap();
        let name = ModelName::parse("toy").unwrap();
        let escaping = serde_json::to_string(&Manifest { main: stored("../../secret"), ..sample() }).unwrap();
        let beside = vec![stored("config.json"), stored("../secret")];
        let escaping_beside = serde_json::to_string(&Manifest { beside, ..sample() }).unwrap();
        let other_name = serde_json::to_string(&Manifest { name: "other".to_owned(), ..sample() }).unwrap();
        let huge = format!("\"{}\"", "x".repeat(100_000));
        for text in ["", "{", "[]", "\0\0\0", &escaping, &escaping_beside, &other_name, &huge] {
            fs::write(folder.path().join(FILE_NAME), text).unwrap();
            let error = Manifest::read(folder.path(), &name).unwrap_err();
            assert!(matches!(error, StoreError::BadManifest { .. }), "{error}");
            assert!(error.to_string().contains(FILE_NAME));
        }
    }
}
