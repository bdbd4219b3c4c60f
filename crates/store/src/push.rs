//! Giving models to others: into the store of another home folder, such as one on a disk that machines share.

use std::fs::{self, File};
use std::path::Path;

use crate::config::StoreConfig;
use crate::disk;
use crate::error::StoreError;
use crate::lock::ModelLock;
use crate::name::ModelName;
use crate::progress::{Event, Progress};
use crate::store::{ModelFile, Store};

impl Store {
    /// Copies a model into the store in `home`; its files are checked here before, and there afterwards. The same one is left as
    /// it is, and so is another of its name, unless that is damaged. Until everything is there, nothing counts as stored.
    pub fn push(&self, name: &str, home: &Path, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let model = self.verify(name, progress)?;
        let (Some(manifest), Some(from)) = (&model.manifest, model.path.parent()) else { return Ok(model) };
        let name = ModelName::parse(&manifest.name)?;
        let there = StoreConfig { home: home.to_owned(), shared: Vec::new(), ollama: None, ..self.config.clone() };
        let there = Store::with_config(there);
        let is_same = |other: &ModelFile| {
            let hashes = |model: &ModelFile| {
                let files = model.manifest.iter().flat_map(|manifest| manifest.files());
                files.map(|stored| (stored.file.clone(), stored.sha256.clone())).collect::<Vec<_>>()
            };
            hashes(other) == hashes(&model)
        };
        let already_there = |progress: &mut dyn Progress| match there.intact(&name, None, progress) {
            Ok(Some(same)) if is_same(&same) => Ok(Some(same)),
            Ok(Some(other)) => {
                Err(StoreError::NameTaken { name: name.to_string(), by: other.path.display().to_string() })
            }
            Ok(None) | Err(StoreError::Damaged { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        // Without the lock, which could not be taken in a folder that is only read.
        if let Some(same) = already_there(progress)? {
            return Ok(same);
        }
        let Some(_lock) = ModelLock::try_take(&there.layout, &name)? else {
            return Err(StoreError::Busy { name: name.to_string() });
        };
        // Others may have put one there since.
        if let Some(same) = already_there(progress)? {
            return Ok(same);
        }
        let folder = there.layout.model(&name);
        disk::remove_if_there(&folder)?;
        disk::require_space(there.layout.models(), manifest.bytes())?;
        let mut done_bytes = 0;
        for stored in manifest.files() {
            copy(&from.join(&stored.file), &folder.join(&stored.file), stored.bytes)?;
            done_bytes += stored.bytes;
            progress.report(Event::Bytes { done_bytes, total_bytes: manifest.bytes() });
            if progress.cancelled() {
                return Err(StoreError::Cancelled);
            }
        }
        manifest.write(&folder)?;
        there.verify(name.as_str(), progress)
    }
}

fn copy(from: &Path, to: &Path, bytes: u64) -> Result<(), StoreError> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
    }
    fs::copy(from, to).map_err(|error| disk::write_failed(to, bytes, error))?;
    File::open(to).and_then(|file| file.sync_all()).map_err(StoreError::io("write", to))
}
