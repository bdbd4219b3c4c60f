//! Adapters in the store, beside its models: `<home>/adapters/<name>/manifest.json` says what an adapter is, and its files lie
//! in `<home>/adapters/.content/<digest>/`, where names of the same content share them.
//!
//! A name that is pulled again gets a new digest. What it meant before stays on disk until the next change of this part of the
//! store, so that a server that still answers with it can read it. What is in an adapter's files is not known here.

mod pull;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::digest;
use crate::disk;
use crate::error::StoreError;
use crate::home::Layout;
use crate::lock::ModelLock;
use crate::manifest::Manifest;
use crate::name::ModelName;
use crate::progress::Progress;
use crate::store::{Store, check_files, is_hidden, is_unchanged};
use crate::suggest;

/// What PEFT calls the two files of an adapter.
pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
const CONTENT: &str = ".content";

/// An adapter of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAdapter {
    /// `NAME`, or `BASE:NAME` for one that belongs to a model.
    pub name: String,
    /// What to open: a folder of PEFT, or a GGUF file.
    pub path: PathBuf,
    /// SHA-256 of the names and hashes of its files.
    pub digest: String,
    pub manifest: Manifest,
}

/// One line of a listing. What cannot be used is listed too, so that it can be removed.
#[derive(Debug)]
pub enum ListedAdapter {
    Adapter(StoredAdapter),
    Unusable { folder: PathBuf, why: StoreError },
}

impl Store {
    /// The adapter of this name. Files whose size or time has changed are hashed, and refused if they are not what was pulled.
    pub fn adapter(&self, name: &str) -> Result<StoredAdapter, StoreError> {
        let unknown = || self.unknown_adapter(name);
        let name = ModelName::parse(name).map_err(|_| unknown())?;
        let folder = self.adapters_layout().model(&name);
        let manifest = Manifest::read(&folder, &name).map_err(|error| damaged(&name, error))?.ok_or_else(unknown)?;
        self.checked_adapter(&name, manifest, &mut |_| {})
    }

    /// All adapters, by name.
    pub fn adapters(&self) -> Result<Vec<ListedAdapter>, StoreError> {
        let layout = self.adapters_layout();
        let entries = match fs::read_dir(layout.models()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(StoreError::io("read", layout.models())(error)),
        };
        let mut folders: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| !is_hidden(path)).collect();
        folders.sort();
        Ok(folders.into_iter().map(|folder| self.list_adapter(folder)).collect())
    }

    /// Removes a name, and the files that no other name has.
    pub fn remove_adapter(&self, name: &str) -> Result<(), StoreError> {
        let unknown = || self.unknown_adapter(name);
        let name = ModelName::parse(name).map_err(|_| unknown())?;
        let layout = self.adapters_layout();
        let folder = layout.model(&name);
        if !folder.exists() {
            return Err(unknown());
        }
        let Some(_lock) = ModelLock::try_take(&layout, &all_adapters()?)? else {
            return Err(StoreError::Busy { name: name.to_string() });
        };
        disk::remove_if_there(&folder)?;
        self.sweep_adapters(None)
    }

    fn list_adapter(&self, folder: PathBuf) -> ListedAdapter {
        let bad = |why: &str| StoreError::BadManifest { path: folder.clone(), why: why.to_owned() };
        let read = || {
            let name = ModelName::from_folder(&folder).ok_or_else(|| bad("the folder is not named like an adapter"))?;
            let manifest = Manifest::read(&folder, &name)?.ok_or_else(|| bad("its manifest is missing"))?;
            let adapter = self.stored_adapter(manifest);
            if is_unchanged(&self.content_folder(&adapter.digest), &adapter.manifest)? {
                return Ok(adapter);
            }
            self.checked_adapter(&name, adapter.manifest, &mut |_| {})
        };
        match read() {
            Ok(adapter) => ListedAdapter::Adapter(adapter),
            Err(why) => ListedAdapter::Unusable { folder, why },
        }
    }

    /// The cheap check, and the full one if that does not match.
    fn checked_adapter(
        &self,
        name: &ModelName,
        mut manifest: Manifest,
        progress: &mut dyn Progress,
    ) -> Result<StoredAdapter, StoreError> {
        let content = self.content_folder(&digest_of(&manifest));
        if !is_unchanged(&content, &manifest)? {
            check_files(name, &content, &mut manifest, None, progress).map_err(|error| damaged(name, error))?;
            // A store that we may read but not write is still usable; it only costs the hash again next time.
            let _ = manifest.write(&self.adapters_layout().model(name));
        }
        Ok(self.stored_adapter(manifest))
    }

    fn stored_adapter(&self, manifest: Manifest) -> StoredAdapter {
        let digest = digest_of(&manifest);
        let content = self.content_folder(&digest);
        let path = if manifest.main.file == ADAPTER_CONFIG { content } else { manifest.main.path_in(&content) };
        StoredAdapter { name: manifest.name.clone(), path, digest, manifest }
    }

    /// Removes files that no name has, except those of `kept`.
    fn sweep_adapters(&self, kept: Option<&str>) -> Result<(), StoreError> {
        let mut used: BTreeSet<String> = kept.map(str::to_owned).into_iter().collect();
        let layout = self.adapters_layout();
        for entry in fs::read_dir(layout.models()).into_iter().flatten().flatten() {
            let Some(name) = ModelName::from_folder(&entry.path()).filter(|_| !is_hidden(&entry.path())) else {
                continue;
            };
            match Manifest::read(&entry.path(), &name) {
                Ok(found) => used.extend(found.as_ref().map(digest_of)),
                // What it means is unknown, so nothing is known to be of no use.
                Err(_) => return Ok(()),
            }
        }
        for entry in fs::read_dir(layout.models().join(CONTENT)).into_iter().flatten().flatten() {
            if !entry.file_name().to_str().is_some_and(|digest| used.contains(digest)) {
                disk::remove_if_there(&entry.path())?;
            }
        }
        Ok(())
    }

    fn unknown_adapter(&self, name: &str) -> StoreError {
        let listed = self.adapters().unwrap_or_default();
        let known: Vec<String> = listed
            .into_iter()
            .filter_map(|item| match item {
                ListedAdapter::Adapter(adapter) => Some(adapter.name),
                ListedAdapter::Unusable { .. } => None,
            })
            .collect();
        let names: Vec<&str> = known.iter().map(String::as_str).collect();
        let suggestion = suggest::closest(name, &names).map(str::to_owned);
        let name = name.chars().take(128).collect::<String>().escape_debug().to_string();
        StoreError::UnknownAdapter { name, suggestion, known }
    }

    fn adapters_layout(&self) -> Layout {
        Layout::of_adapters(&self.config.home)
    }

    fn content_folder(&self, digest: &str) -> PathBuf {
        self.adapters_layout().models().join(CONTENT).join(digest)
    }
}

/// One process at a time changes the adapters: they are small, and names share files.
fn all_adapters() -> Result<ModelName, StoreError> {
    ModelName::parse("adapters")
}

/// The digest of an adapter: of its files' names and hashes, in their order.
fn digest_of(manifest: &Manifest) -> String {
    let mut hasher = Sha256::new();
    for file in manifest.files() {
        hasher.update(format!("{}  {}\n", file.sha256, file.file));
    }
    digest::hex(hasher)
}

/// Says what to do about an adapter, where an error speaks of models.
fn damaged(name: &ModelName, error: StoreError) -> StoreError {
    let why = match error {
        StoreError::Damaged { path, expected, got, .. } => {
            format!("{} should have {expected} but has {got}", path.display())
        }
        StoreError::BadManifest { path, why } => format!("{} is unusable ({why})", path.display()),
        other => return other,
    };
    StoreError::AdapterDamaged { name: name.to_string(), why }
}

/// Whether a folder holds an adapter of PEFT.
fn is_peft_folder(path: &Path) -> bool {
    path.join(ADAPTER_CONFIG).is_file()
}
