//! Models in folders of others, which are only read: `RUVLLM_MODELS`.
//!
//! Whoever can write to such a folder can put any bytes there, of any size and time, with a manifest that vouches for them. So a
//! file is hashed here before it is used for the first time. That it was is noted in our own home together with what tells that
//! it has not been written since: of a file's times, the one of its last change cannot be set.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::catalogue::PinnedFile;
use crate::disk;
use crate::error::StoreError;
use crate::home::Layout;
use crate::manifest::Manifest;
use crate::name::ModelName;
use crate::progress::Progress;
use crate::store::{Listed, ModelFile, Store, check_files, is_what_was_pinned, list_folder, stored};

/// A file as it was when its bytes had this hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Checked {
    path: PathBuf,
    sha256: String,
    bytes: u64,
    device: u64,
    inode: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Store {
    /// The model in the first shared folder that has it, hashed if that was not done before.
    pub(crate) fn find_shared(
        &self,
        name: &ModelName,
        pinned: Option<&[PinnedFile]>,
        progress: &mut dyn Progress,
    ) -> Result<Option<ModelFile>, StoreError> {
        let Some((folder, manifest)) = self.shared_manifest(name)? else { return Ok(None) };
        if pinned.is_some_and(|pinned| !is_what_was_pinned(&manifest, pinned)) {
            return self.check_shared(name, folder, manifest, pinned, progress).map(Some);
        }
        self.checked_in_place(name, folder, manifest, progress).map(Some)
    }

    /// A model in a folder of others, hashed if that was not done before.
    pub(crate) fn checked_in_place(
        &self,
        name: &ModelName,
        folder: PathBuf,
        manifest: Manifest,
        progress: &mut dyn Progress,
    ) -> Result<ModelFile, StoreError> {
        if files_now(&folder, &manifest).is_some_and(|now| self.were_checked(name, &now)) {
            return Ok(stored(&folder, manifest));
        }
        self.check_shared(name, folder, manifest, None, progress)
    }

    /// Hashes it, whether that was done before or not.
    pub(crate) fn verify_shared(
        &self,
        name: &ModelName,
        pinned: Option<&[PinnedFile]>,
        progress: &mut dyn Progress,
    ) -> Result<Option<ModelFile>, StoreError> {
        let Some((folder, manifest)) = self.shared_manifest(name)? else { return Ok(None) };
        self.check_shared(name, folder, manifest, pinned, progress).map(Some)
    }

    /// The first shared folder that has a model of this name.
    pub(crate) fn shared_folder_of(&self, name: &ModelName) -> Option<&Path> {
        let has_it = |home: &&PathBuf| Layout::new(home).model(name).is_dir();
        self.config.shared.iter().find(has_it).map(PathBuf::as_path)
    }

    /// Adds what is in shared folders under names that are not listed yet.
    pub(crate) fn add_shared(&self, listed: &mut Vec<Listed>) {
        for home in &self.config.shared {
            let found = match self.models_in(home).and_then(|layout| list_folder(layout.models())) {
                Ok(found) => found,
                Err(why) => vec![Listed::Unusable { folder: home.clone(), why }],
            };
            for item in found {
                let is_listed = |name: &str| listed.iter().any(|other| other.name() == Some(name));
                if item.name().is_none_or(|name| !is_listed(name)) {
                    listed.push(item);
                }
            }
        }
    }

    fn shared_manifest(&self, name: &ModelName) -> Result<Option<(PathBuf, Manifest)>, StoreError> {
        for home in &self.config.shared {
            let folder = self.models_in(home)?.model(name);
            if let Some(manifest) = Manifest::read(&folder, name)? {
                return Ok(Some((folder, manifest)));
            }
        }
        Ok(None)
    }

    /// A disk that is not mounted is told: without it, gigabytes would be fetched again in silence.
    fn models_in(&self, home: &Path) -> Result<Layout, StoreError> {
        let layout = Layout::new(home);
        if !layout.models().is_dir() {
            return Err(StoreError::NoSharedFolder { folder: home.to_owned() });
        }
        Ok(layout)
    }

    fn check_shared(
        &self,
        name: &ModelName,
        folder: PathBuf,
        mut manifest: Manifest,
        pinned: Option<&[PinnedFile]>,
        progress: &mut dyn Progress,
    ) -> Result<ModelFile, StoreError> {
        // As it is before its bytes are read: what is written meanwhile is not noted as checked.
        let before = files_now(&folder, &manifest);
        check_files(name, &folder, &mut manifest, pinned, progress)?;
        let hashes = manifest.files().map(|file| file.sha256.clone());
        let checked = before.map(|files| {
            let hashed = files.into_iter().zip(hashes).map(|(file, sha256)| Checked { sha256, ..file });
            hashed.collect::<Vec<_>>()
        });
        if let Some(text) = checked.and_then(|checked| serde_json::to_vec(&checked).ok()) {
            let note = self.layout.checked(name);
            // Where nothing can be noted, it costs the hash again next time.
            let _ = note.parent().map(fs::create_dir_all).transpose();
            let _ = disk::write_atomically(&note, &text);
        }
        Ok(stored(&folder, manifest))
    }

    fn were_checked(&self, name: &ModelName, now: &[Checked]) -> bool {
        let note = fs::read(self.layout.checked(name)).ok();
        note.and_then(|text| serde_json::from_slice::<Vec<Checked>>(&text).ok()).is_some_and(|noted| noted == now)
    }
}

impl Listed {
    fn name(&self) -> Option<&str> {
        self.model().map(|model| model.name.as_str())
    }

    pub(crate) fn model(&self) -> Option<&ModelFile> {
        match self {
            Listed::Model(model) => Some(model),
            Listed::Unusable { .. } => None,
        }
    }

    pub(crate) fn into_model(self) -> Option<ModelFile> {
        match self {
            Listed::Model(model) => Some(model),
            Listed::Unusable { .. } => None,
        }
    }

    /// The model, if it has this name.
    pub(crate) fn is_model(&self, name: &str) -> Option<&ModelFile> {
        self.model().filter(|model| model.name == name)
    }
}

/// The files as they are, with the hashes that the manifest claims. `None` where a file is missing, or where the system does not
/// tell enough to notice that one was changed.
fn files_now(folder: &Path, manifest: &Manifest) -> Option<Vec<Checked>> {
    let one = |file: &crate::manifest::StoredFile| {
        let path = std::path::absolute(file.path_in(folder)).ok()?;
        let metadata = fs::metadata(&path).ok()?;
        checked(path, file.sha256.clone(), &metadata)
    };
    manifest.files().map(one).collect()
}

#[cfg(unix)]
fn checked(path: PathBuf, sha256: String, now: &Metadata) -> Option<Checked> {
    use std::os::unix::fs::MetadataExt;
    Some(Checked {
        path,
        sha256,
        bytes: now.len(),
        device: now.dev(),
        inode: now.ino(),
        written: (now.mtime(), now.mtime_nsec()),
        changed: (now.ctime(), now.ctime_nsec()),
    })
}

#[cfg(not(unix))]
fn checked(_: PathBuf, _: String, _: &Metadata) -> Option<Checked> {
    None
}
