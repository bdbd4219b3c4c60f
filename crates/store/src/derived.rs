//! Models made from others: a name, settings, and the file of the model that they are made from, which is not copied.
//!
//! Each is one small file in `<home>/models/.derived/`. What it is made from is always a model with a file of its own.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::disk;
use crate::error::StoreError;
use crate::lock::ModelLock;
use crate::name::ModelName;
use crate::settings::ModelSettings;
use crate::store::{Listed, Meaning, ModelFile, Store};

/// Maximum size of the file. A larger one is not read, and none is written.
const BYTES_MAX: u64 = 1 << 20;

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Derived {
    name: String,
    /// Name of the model whose file it shares.
    base: String,
    #[serde(flatten)]
    settings: ModelSettings,
    created_at_unix_s: u64,
}

impl Store {
    /// Makes a model with the file of another and settings of its own, over those of the other. Replaces an earlier one of
    /// the same name, but no model with a file.
    pub fn derive(&self, name: &str, from: &str, settings: ModelSettings) -> Result<ModelFile, StoreError> {
        let name = self.name_for_derived(name)?;
        for adapter in &settings.adapters {
            self.adapter(adapter)?;
        }
        let from = self.named(from)?;
        let base = from.base.clone().unwrap_or_else(|| from.name.clone());
        let created_at_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut settings = settings.over(&from.settings);
        // Files of an Ollama installation belong to the base, whose adapters are used if there are no others.
        settings.adapters.retain(|adapter| ModelName::parse(adapter).is_ok());
        let derived = Derived { name: name.to_string(), base, settings, created_at_unix_s };
        let path = self.layout.derived(&name);
        let text =
            serde_json::to_vec_pretty(&derived).map_err(|error| StoreError::io("encode", &path)(error.into()))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(StoreError::TooLong { name: name.to_string(), bytes_max: BYTES_MAX });
        }
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
        let Some(_lock) = ModelLock::try_take(&self.layout, &name)? else {
            return Err(StoreError::Busy { name: name.to_string() });
        };
        disk::write_atomically(&path, &text)?;
        Ok(derived.with_file_of(from))
    }

    /// The model of this name as it is listed: nothing is fetched and nothing hashed.
    pub fn named(&self, name: &str) -> Result<ModelFile, StoreError> {
        let names = [Some(name), name.strip_suffix(":latest")];
        let mut listed: Vec<ModelFile> = self.list()?.into_iter().filter_map(Listed::into_model).collect();
        let catalogue = |name: &&str| self.config.catalogue.find(name).map(|entry| entry.name.as_str());
        let known = names.into_iter().flatten().flat_map(|name| [Some(name), catalogue(&name)]).flatten();
        let found =
            known.filter_map(|name| listed.iter().position(|model| model.name.eq_ignore_ascii_case(name))).next();
        found.map(|index| listed.swap_remove(index)).ok_or_else(|| self.unknown(name))
    }

    /// The base and the settings of a model that was made from another. Takes microseconds; `None` if there is none of this
    /// name, or its file cannot be used.
    pub fn derived(&self, name: &str) -> Option<(String, ModelSettings)> {
        let name = ModelName::parse(name).ok()?;
        let derived = Derived::read(&self.layout.derived(&name), &name).ok()??;
        Some((derived.base, derived.settings))
    }

    /// `None` when no such model was made.
    pub(crate) fn find_derived(&self, name: &ModelName) -> Result<Option<ModelFile>, StoreError> {
        let Some(derived) = Derived::read(&self.layout.derived(name), name)? else { return Ok(None) };
        // Looked at first: two that name each other would never end.
        if self.layout.derived(&ModelName::parse(&derived.base)?).exists() {
            return Err(derived.bad(&self.layout.derived(name), "what it is made from has no file of its own"));
        }
        // Its base is checked as always.
        let base = match self.meaning_of_name(&derived.base)? {
            Meaning::Name(_) | Meaning::Entry(..) => self.resolve(&derived.base)?,
            Meaning::File(_) | Meaning::Hub(_) | Meaning::Repo(_) => return Err(self.unknown(&derived.base)),
        };
        Ok(Some(derived.with_file_of(base)))
    }

    /// Adds what was made from the models that are listed.
    pub(crate) fn add_derived(&self, listed: &mut Vec<Listed>) {
        for path in self.derived_files() {
            let Some(name) = ModelName::from_folder(&path.with_extension("")) else { continue };
            let item = match Derived::read(&path, &name) {
                Ok(None) => continue,
                Ok(Some(derived)) => match listed.iter().find_map(|item| item.is_model(&derived.base)) {
                    Some(base) if base.base.is_none() => Listed::Model(derived.with_file_of(base.clone())),
                    _ => {
                        let why =
                            derived.bad(&path, &format!("`{}`, which it is made from, is not here", derived.base));
                        Listed::Unusable { folder: path, why }
                    }
                },
                Err(why) => Listed::Unusable { folder: path, why },
            };
            listed.push(item);
        }
    }

    /// Removes it, if it was made here. Its base stays.
    pub(crate) fn remove_derived(&self, name: &ModelName) -> Result<bool, StoreError> {
        let path = self.layout.derived(name);
        if !path.exists() {
            return Ok(false);
        }
        let Some(_lock) = ModelLock::try_take(&self.layout, name)? else {
            return Err(StoreError::Busy { name: name.to_string() });
        };
        disk::remove_if_there(&path)?;
        Ok(true)
    }

    /// A model that others are made from cannot be removed: they would be lost with it.
    pub(crate) fn require_no_derived(&self, name: &ModelName) -> Result<(), StoreError> {
        let is_made_from = |path: &PathBuf| {
            let derived = ModelName::from_folder(&path.with_extension(""))?;
            let found = Derived::read(path, &derived).ok()??;
            (found.base == name.as_str()).then_some(found.name)
        };
        match self.derived_files().iter().find_map(is_made_from) {
            Some(by) => Err(StoreError::IsBase { name: name.to_string(), by }),
            None => Ok(()),
        }
    }

    fn derived_files(&self) -> Vec<PathBuf> {
        let folder = self.layout.derived_folder();
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
        files.sort();
        files
    }

    /// Names of models with files keep their meaning.
    fn name_for_derived(&self, name: &str) -> Result<ModelName, StoreError> {
        let name = ModelName::parse(name.strip_suffix(":latest").unwrap_or(name))?;
        let taken = |by: String| StoreError::NameTaken { name: name.to_string(), by };
        if let Some(entry) = self.config.catalogue.find(name.as_str()) {
            return Err(taken(format!("the catalogue ({})", entry.description)));
        }
        match self.list()?.iter().find_map(|item| item.is_model(name.as_str())) {
            Some(model) if model.base.is_none() => Err(taken(model.path.display().to_string())),
            _ => Ok(name),
        }
    }
}

impl Derived {
    /// `None` when there is no such file.
    fn read(path: &Path, name: &ModelName) -> Result<Option<Derived>, StoreError> {
        let bad = |why: String| StoreError::BadDerived { path: path.to_owned(), why };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(bad(error.to_string())),
        };
        let mut text = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| bad(error.to_string()))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(bad(format!("it is larger than {BYTES_MAX} bytes")));
        }
        let derived: Derived = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        if derived.name != name.as_str() {
            return Err(bad(format!("it is for `{}`", derived.name.escape_debug())));
        }
        // A name and nothing else: what is written there must not lead to a file.
        for name in derived.settings.adapters.iter().chain([&derived.base]) {
            ModelName::parse(name).map_err(|error| bad(error.to_string()))?;
        }
        Ok(Some(derived))
    }

    fn with_file_of(self, base: ModelFile) -> ModelFile {
        let settings = Box::new(self.settings.over(&base.settings));
        ModelFile { name: self.name, base: Some(self.base), settings, ..base }
    }

    fn bad(&self, path: &Path, why: &str) -> StoreError {
        StoreError::BadDerived { path: path.to_owned(), why: why.to_owned() }
    }
}
