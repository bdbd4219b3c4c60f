//! What is on disk: finding it, listing it, checking it, removing it. Fetching is in `pull`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::catalogue::{Catalogue, CatalogueEntry, PinnedFile};
use crate::config::StoreConfig;
use crate::digest;
use crate::disk;
use crate::error::StoreError;
use crate::home::Layout;
use crate::lock::ModelLock;
use crate::manifest::{self, Manifest, StoredFile};
use crate::name::ModelName;
use crate::progress::Progress;
use crate::settings::ModelSettings;
use crate::sources::{self, HubFile, HubRepo};
use crate::suggest;

/// The models of one home folder, and of others' that are only read. Cheap to make; nothing is created on disk before the first pull.
#[derive(Debug)]
pub struct Store {
    pub(crate) layout: Layout,
    pub(crate) config: StoreConfig,
}

/// A model ready to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// Of its main file. What else it is made of lies beside that.
    pub path: PathBuf,
    pub name: String,
    /// `None` for a file outside the store, used where it lies.
    pub manifest: Option<Manifest>,
    /// Defaults of its parameters, and what its conversations begin with.
    pub settings: Box<ModelSettings>,
    /// The model whose file this one shares, if it is made from another.
    pub base: Option<String>,
}

/// One line of a listing. A model that cannot be used is listed too, so that it can be repaired or removed.
#[derive(Debug)]
pub enum Listed {
    Model(ModelFile),
    Unusable { folder: PathBuf, why: StoreError },
}

/// What a name or path given by a user stands for.
pub(crate) enum Meaning<'a> {
    File(&'a Path),
    Entry(&'a CatalogueEntry, ModelName),
    Hub(HubFile),
    Repo(HubRepo),
    /// Neither in the catalogue nor an address: perhaps stored under this name.
    Name(ModelName),
}

impl Store {
    /// The store in `home`, with the built-in catalogue and the user's environment.
    pub fn open(home: &Path) -> Store {
        Store::with_config(StoreConfig::from_env(home))
    }

    pub fn with_config(config: StoreConfig) -> Store {
        Store { layout: Layout::new(&config.home), config }
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.config.catalogue
    }

    pub(crate) fn meaning_of<'a>(&'a self, spec: &'a str) -> Result<Meaning<'a>, StoreError> {
        match sources::local_file(spec) {
            Some(path) => Ok(Meaning::File(path)),
            None => self.meaning_of_name(spec),
        }
    }

    /// What a text stands for that is not the path of a file.
    pub(crate) fn meaning_of_name<'a>(&'a self, spec: &'a str) -> Result<Meaning<'a>, StoreError> {
        let spec = self.without_latest(spec);
        if let Some(repo) = HubRepo::parse(spec) {
            return Ok(Meaning::Repo(repo));
        }
        if let Some(file) = HubFile::parse(spec) {
            return Ok(Meaning::Hub(file?));
        }
        if let Some(entry) = self.config.catalogue.find(spec) {
            return Ok(Meaning::Entry(entry, ModelName::parse(&entry.name)?));
        }
        match ModelName::parse(spec) {
            Ok(name) if !sources::is_written_as_path(spec) => Ok(Meaning::Name(name)),
            Ok(name) if self.is_known(&name) => Ok(Meaning::Name(name)),
            Err(error) if !sources::is_written_as_path(spec) => Err(error),
            _ => Err(StoreError::NoSuchFile { path: spec.into() }),
        }
    }

    /// The file for a catalogue name, a stored name, a hub address that was pulled, or a path. Does not fetch.
    ///
    /// A file whose size or time has changed is hashed before it is handed out, and refused if it is not what was
    /// pulled.
    pub fn resolve(&self, name_or_path: &str) -> Result<ModelFile, StoreError> {
        let not_pulled =
            |name: &ModelName| StoreError::NotPulled { name: name.to_string(), spec: name_or_path.to_owned() };
        let quiet = &mut |_| {};
        match self.meaning_of(name_or_path)? {
            Meaning::File(path) => Ok(in_place(path)),
            Meaning::Entry(entry, name) => self.find(&name, entry.pinned(), quiet)?.ok_or_else(|| not_pulled(&name)),
            Meaning::Hub(file) => {
                let name = file.default_name()?;
                self.find(&name, None, quiet)?
                    .filter(|model| model.came_from(&file.to_string()))
                    .ok_or_else(|| not_pulled(&name))
            }
            Meaning::Repo(repo) => {
                let name = repo.default_name()?;
                self.find(&name, None, quiet)?
                    .filter(|model| model.manifest.as_ref().is_some_and(|manifest| repo.has(&manifest.source)))
                    .ok_or_else(|| not_pulled(&name))
            }
            Meaning::Name(name) => match self.find(&name, None, quiet)? {
                Some(model) => Ok(model),
                None => Err(self.unknown(name.as_str())),
            },
        }
    }

    /// Reads all files, whatever their sizes and times say.
    pub fn verify(&self, name: &str, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let (name, pinned) = self.stored_name(name)?;
        match Manifest::read(&self.layout.model(&name), &name)? {
            Some(manifest) => self.check_fully(&name, manifest, pinned, progress),
            None => self.verify_shared(&name, pinned, progress)?.ok_or_else(|| self.unknown(name.as_str())),
        }
    }

    /// Everything in the models folder, by name; behind it what only shared folders and an Ollama installation have, and what
    /// is made from all of these. Foreign or damaged entries are reported, never fatal.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let mut listed = list_folder(self.layout.models())?;
        self.add_shared(&mut listed);
        self.add_ollama(&mut listed);
        self.add_derived(&mut listed);
        Ok(listed)
    }

    /// Removes the model and whatever an unfinished pull left of it. A process that has the file open keeps it.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let spec = name;
        let (name, _) = self.stored_name(spec)?;
        if self.remove_derived(&name)? {
            return Ok(());
        }
        let folder = self.layout.model(&name);
        let partial = self.layout.partial(&name);
        if !folder.exists() && !partial.exists() {
            if let Some(folder) = self.ollama_with(&name) {
                return Err(StoreError::OfOllama { name: name.to_string(), folder: folder.to_owned() });
            }
            if let Some(folder) = self.shared_folder_of(&name) {
                return Err(StoreError::Shared { name: name.to_string(), folder: folder.to_owned() });
            }
            let not_pulled = || StoreError::NotPulled { name: name.to_string(), spec: spec.to_owned() };
            let entry = self.config.catalogue.find(name.as_str());
            return Err(entry.map_or_else(|| self.unknown(name.as_str()), |_| not_pulled()));
        }
        self.require_no_derived(&name)?;
        let Some(_lock) = ModelLock::try_take(&self.layout, &name)? else {
            return Err(StoreError::Busy { name: name.to_string() });
        };
        // Without its manifest the model no longer counts as stored, should we be interrupted after this.
        disk::remove_if_there(&folder.join(manifest::FILE_NAME))?;
        disk::remove_if_there(&folder)?;
        disk::remove_if_there(&partial)
    }

    /// The name a model would be stored under, and the files that the catalogue demands of it.
    fn stored_name(&self, spec: &str) -> Result<(ModelName, Option<&[PinnedFile]>), StoreError> {
        let spec = self.without_latest(spec);
        match self.config.catalogue.find(spec) {
            Some(entry) => Ok((ModelName::parse(&entry.name)?, entry.pinned())),
            None => match (HubRepo::parse(spec), HubFile::parse(spec)) {
                (Some(repo), _) => Ok((repo.default_name()?, None)),
                (None, Some(file)) => Ok((file?.default_name()?, None)),
                (None, None) => Ok((ModelName::parse(spec)?, None)),
            },
        }
    }

    fn is_known(&self, name: &ModelName) -> bool {
        self.layout.model(name).is_dir() || self.shared_folder_of(name).is_some()
    }

    /// `NAME:latest` is Ollama's long form of `NAME`, unless a model is stored under just that name.
    fn without_latest<'a>(&self, spec: &'a str) -> &'a str {
        let is_known = || ModelName::parse(spec).is_ok_and(|name| self.is_known(&name));
        spec.strip_suffix(":latest").filter(|_| !is_known()).unwrap_or(spec)
    }

    /// In the home folder, or else in a shared one, made from another model, or in an Ollama installation.
    fn find(
        &self,
        name: &ModelName,
        pinned: Option<&[PinnedFile]>,
        progress: &mut dyn Progress,
    ) -> Result<Option<ModelFile>, StoreError> {
        match self.intact(name, pinned, progress)? {
            Some(model) => return Ok(Some(model)),
            None if pinned.is_some() => return self.find_shared(name, pinned, progress),
            None => {}
        }
        if let Some(model) = self.find_shared(name, None, progress)? {
            return Ok(Some(model));
        }
        match self.find_derived(name)? {
            Some(model) => Ok(Some(model)),
            None => self.find_ollama(name, progress),
        }
    }

    /// `None` when the model is not stored in the home folder. The cheap check, and the full one if that does not match.
    pub(crate) fn intact(
        &self,
        name: &ModelName,
        pinned: Option<&[PinnedFile]>,
        progress: &mut dyn Progress,
    ) -> Result<Option<ModelFile>, StoreError> {
        let folder = self.layout.model(name);
        let Some(manifest) = Manifest::read(&folder, name)? else {
            return Ok(None);
        };
        if is_unchanged(&folder, &manifest)? && pinned.is_none_or(|pinned| is_what_was_pinned(&manifest, pinned)) {
            return Ok(Some(stored(&folder, manifest)));
        }
        self.check_fully(name, manifest, pinned, progress).map(Some)
    }

    fn check_fully(
        &self,
        name: &ModelName,
        mut manifest: Manifest,
        pinned: Option<&[PinnedFile]>,
        progress: &mut dyn Progress,
    ) -> Result<ModelFile, StoreError> {
        let folder = self.layout.model(name);
        let before = manifest.clone();
        check_files(name, &folder, &mut manifest, pinned, progress)?;
        if manifest != before {
            // A store that we may read but not write is still usable; it only costs the hash again next time.
            let _ = manifest.write(&folder);
        }
        Ok(stored(&folder, manifest))
    }

    pub(crate) fn unknown(&self, name: &str) -> StoreError {
        let stored = self.list().unwrap_or_default().into_iter();
        let mut known: Vec<String> = stored
            .filter_map(|listed| match listed {
                Listed::Model(model) => Some(model.name),
                Listed::Unusable { .. } => None,
            })
            .chain(self.config.catalogue.entries.iter().map(|entry| entry.name.clone()))
            .collect();
        known.sort();
        known.dedup();
        let names: Vec<&str> = known.iter().map(String::as_str).collect();
        StoreError::Unknown {
            name: name.to_owned(),
            suggestion: suggest::closest(name, &names).map(str::to_owned),
            known,
        }
    }
}

impl ModelFile {
    pub(crate) fn came_from(&self, source: &str) -> bool {
        self.manifest.as_ref().is_some_and(|manifest| manifest.source == source)
    }
}

pub(crate) fn stored(folder: &Path, manifest: Manifest) -> ModelFile {
    let (path, name) = (manifest.main.path_in(folder), manifest.name.clone());
    ModelFile { path, name, manifest: Some(manifest), settings: Box::default(), base: None }
}

const NO_FILE: &str = "no file at all";

fn size(bytes: u64) -> String {
    format!("{bytes} bytes")
}

/// The cheap check of all files.
pub(crate) fn is_unchanged(folder: &Path, manifest: &Manifest) -> Result<bool, StoreError> {
    for file in manifest.files() {
        if !manifest::metadata_of(&file.path_in(folder))?.is_some_and(|now| file.describes(&now)) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn is_what_was_pinned(manifest: &Manifest, pinned: &[PinnedFile]) -> bool {
    let is_there = |pin: &PinnedFile| manifest.files().any(|file| file.file == pin.file && file.sha256 == pin.sha256);
    pinned.iter().all(is_there)
}

/// Hashes all files, which must be those that are pinned; what is known of them is brought up to date.
pub(crate) fn check_files(
    name: &ModelName,
    folder: &Path,
    manifest: &mut Manifest,
    pinned: Option<&[PinnedFile]>,
    progress: &mut dyn Progress,
) -> Result<(), StoreError> {
    let lacks = |pinned: &&PinnedFile| manifest.files().all(|stored| stored.file != pinned.file);
    if let Some(lacking) = pinned.into_iter().flatten().find(lacks) {
        return Err(StoreError::Damaged {
            name: name.to_string(),
            path: folder.join(&lacking.file),
            expected: size(lacking.bytes),
            got: NO_FILE.to_owned(),
        });
    }
    for file in manifest.files_mut() {
        let pin = pinned.into_iter().flatten().find(|pin| pin.file == file.file);
        check_file(name, folder, file, pin, progress)?;
    }
    Ok(())
}

/// Hashes a file; what is known of it is brought up to date.
fn check_file(
    name: &ModelName,
    folder: &Path,
    file: &mut StoredFile,
    pin: Option<&PinnedFile>,
    progress: &mut dyn Progress,
) -> Result<(), StoreError> {
    let path = file.path_in(folder);
    let damaged = |expected: String, got: String| StoreError::Damaged {
        name: name.to_string(),
        path: path.clone(),
        expected,
        got,
    };
    let Some(metadata) = manifest::metadata_of(&path)? else {
        return Err(damaged(size(file.bytes), NO_FILE.to_owned()));
    };
    if !metadata.is_file() || metadata.len() != file.bytes {
        return Err(damaged(size(file.bytes), size(metadata.len())));
    }
    let sha256 = sha256_of(&path, metadata.len(), progress)?;
    let expected = pin.map_or(&file.sha256, |pin| &pin.sha256);
    if sha256 != *expected {
        return Err(damaged(format!("SHA-256 {expected}"), sha256));
    }
    file.sha256 = sha256;
    file.mtime_unix_ns = manifest::mtime_unix_ns(&metadata);
    Ok(())
}

fn in_place(path: &Path) -> ModelFile {
    // A folder's name may have dots.
    let stem = if path.is_dir() { path.file_name() } else { path.file_stem() }.unwrap_or(path.as_os_str());
    let (path, name) = (path.to_owned(), stem.to_string_lossy().into_owned());
    ModelFile { path, name, manifest: None, settings: Box::default(), base: None }
}

pub(crate) fn sha256_of(path: &Path, bytes: u64, progress: &mut dyn Progress) -> Result<String, StoreError> {
    let hasher = File::open(path)
        .and_then(|mut file| digest::hash_file(&mut file, bytes, progress))
        .map_err(StoreError::io("read", path))?;
    hasher.map(digest::hex).ok_or(StoreError::Cancelled)
}

pub(crate) fn list_folder(models: &Path) -> Result<Vec<Listed>, StoreError> {
    let entries = match fs::read_dir(models) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("read", models)(error)),
    };
    let mut folders: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| !is_hidden(path)).collect();
    folders.sort();
    Ok(folders.into_iter().map(list_one).collect())
}

pub(crate) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'))
}

fn list_one(folder: PathBuf) -> Listed {
    match model_in(&folder) {
        Ok(model) => Listed::Model(model),
        Err(why) => Listed::Unusable { folder, why },
    }
}

fn model_in(folder: &Path) -> Result<ModelFile, StoreError> {
    let bad = |why: &str| StoreError::BadManifest { path: folder.join(manifest::FILE_NAME), why: why.to_owned() };
    let name = ModelName::from_folder(folder).ok_or_else(|| bad("the folder is not named like a model"))?;
    let manifest = Manifest::read(folder, &name)?.ok_or_else(|| bad("it is missing"))?;
    for file in manifest.files() {
        let path = file.path_in(folder);
        match manifest::metadata_of(&path)? {
            Some(metadata) if metadata.len() == file.bytes => {}
            found => {
                return Err(StoreError::Damaged {
                    name: name.to_string(),
                    path,
                    expected: size(file.bytes),
                    got: found.map_or(NO_FILE.to_owned(), |metadata| size(metadata.len())),
                });
            }
        }
    }
    Ok(stored(folder, manifest))
}
