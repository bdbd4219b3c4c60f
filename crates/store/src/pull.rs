//! Bringing a model into the store: under its lock, from the first source that delivers, checked, renamed into place.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::catalogue::CatalogueEntry;
use crate::disk;
use crate::error::{SourceFailure, StoreError};
use crate::lock::ModelLock;
use crate::manifest::{self, Manifest};
use crate::name::{self, ModelName, is_safe_file_name};
use crate::progress::{Event, Progress};
use crate::sources::{self, FetchError, Fetched, HubFile, Order, Source};
use crate::store::{Meaning, ModelFile, Store, sha256_of, stored};

/// What to fetch, under which name, and from where.
#[derive(Debug)]
struct Plan {
    name: ModelName,
    file: String,
    bytes: Option<u64>,
    sha256: Option<String>,
    licence: Option<String>,
    sources: Vec<Source>,
}

impl Store {
    /// Fetches a catalogue model, a hub file (`hf:owner/repo/file.gguf@revision`) or a local file into the store, or
    /// finds it there intact. A damaged model is fetched anew.
    pub fn pull(&self, spec: &str, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let plan = match self.meaning_of(spec)? {
            Meaning::Entry(entry, name) => Plan::for_entry(entry, name),
            Meaning::Hub(file) => Plan::for_hub(file.default_name()?, file),
            Meaning::File(path) => Plan::for_local(self.name_for_local(path)?, path)?,
            Meaning::Name(name) => self.plan_from_manifest(name)?,
        };
        self.carry_out(&plan, progress)
    }

    /// Like [`Store::pull`], under a name of the user's choice.
    pub fn pull_as(&self, spec: &str, name: &str, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let name = self.free_name(name)?;
        let plan = match self.meaning_of(spec)? {
            Meaning::Entry(entry, _) => Plan::for_entry(entry, name),
            Meaning::Hub(file) => Plan::for_hub(name, file),
            Meaning::File(path) => Plan::for_local(name, path)?,
            Meaning::Name(unknown) => return Err(self.unknown(unknown.as_str())),
        };
        self.carry_out(&plan, progress)
    }

    /// The file, fetched first if it is not there. A damaged one is refused, not silently replaced: the user should
    /// learn that his disk loses data.
    pub fn ensure(&self, spec: &str, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        match self.resolve(spec) {
            Err(StoreError::NotPulled { .. }) => self.pull(spec, progress),
            resolved => resolved,
        }
    }

    fn carry_out(&self, plan: &Plan, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let folder = self.layout.model(&plan.name);
        fs::create_dir_all(self.layout.models()).map_err(StoreError::io("create", self.layout.models()))?;
        let _lock = ModelLock::wait(&self.layout, &plan.name, progress)?;
        let present = match self.already_there(plan, progress)? {
            Some(model) => model,
            None => self.fetch_from_any(plan, &folder, progress)?,
        };
        progress.report(Event::Done { path: present.path.clone() });
        Ok(present)
    }

    /// Intact under this name from an earlier pull; a damaged or half-installed one is cleared away.
    fn already_there(&self, plan: &Plan, progress: &mut dyn Progress) -> Result<Option<ModelFile>, StoreError> {
        let folder = self.layout.model(&plan.name);
        match self.intact(&plan.name, plan.sha256.as_deref(), progress) {
            Ok(Some(model)) => reusable(plan, model),
            Ok(None) => self.adopt(plan, &folder, progress),
            Err(StoreError::BadManifest { path, .. }) => {
                disk::remove_if_there(&path)?;
                self.adopt(plan, &folder, progress)
            }
            Err(StoreError::Damaged { .. }) => {
                disk::remove_if_there(&folder)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A pull that was killed between the last two steps left the file without its manifest.
    fn adopt(&self, plan: &Plan, folder: &Path, progress: &mut dyn Progress) -> Result<Option<ModelFile>, StoreError> {
        let path = folder.join(&plan.file);
        let Some(metadata) = manifest::metadata_of(&path)? else {
            return Ok(None);
        };
        let (Some(pinned), true) = (&plan.sha256, plan.bytes == Some(metadata.len())) else {
            return Ok(None);
        };
        if sha256_of(&path, metadata.len(), progress)? != *pinned {
            return Ok(None);
        }
        let source = "found in the store".to_owned();
        write_manifest(plan, folder, pinned.clone(), source).map(Some)
    }

    fn fetch_from_any(&self, plan: &Plan, folder: &Path, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let order = Order { folder: self.layout.partial(&plan.name), bytes: plan.bytes, sha256: plan.sha256.clone() };
        let mut failures = Vec::new();
        for source in &plan.sources {
            progress.report(Event::TrySource { source: source.to_string() });
            let (hub, pip) = (&self.config.hub, &self.config.pip);
            match sources::fetch(source, hub, pip, &order, progress) {
                Ok(fetched) => return install(plan, folder, &order, fetched, source),
                Err(FetchError::Store(error)) => return Err(error),
                Err(FetchError::Source(why)) => {
                    progress.report(Event::SourceFailed { source: source.to_string(), why: why.to_string() });
                    failures.push(SourceFailure { source: source.to_string(), why });
                }
            }
        }
        Err(StoreError::AllSourcesFailed { name: plan.name.to_string(), failures })
    }

    /// Pulling a stored model by its own name: found intact, or repaired from where it came from.
    fn plan_from_manifest(&self, name: ModelName) -> Result<Plan, StoreError> {
        let Some(manifest) = Manifest::read(&self.layout.model(&name), &name)? else {
            return Err(self.unknown(name.as_str()));
        };
        let source = match HubFile::parse(&manifest.source) {
            Some(file) => Source::Hub(file?),
            None => Source::Local(manifest.source.into()),
        };
        Ok(Plan {
            name,
            file: manifest.file,
            bytes: Some(manifest.bytes),
            sha256: Some(manifest.sha256),
            licence: manifest.licence,
            sources: vec![source],
        })
    }

    fn name_for_local(&self, path: &Path) -> Result<ModelName, StoreError> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        self.free_name(&name::plain(&stem))
    }

    /// The catalogue's names mean the catalogue's models.
    fn free_name(&self, name: &str) -> Result<ModelName, StoreError> {
        match self.config.catalogue.find(name) {
            Some(entry) => Err(StoreError::NameTaken {
                name: name.to_owned(),
                by: format!("the catalogue ({})", entry.description),
            }),
            None => ModelName::parse(name),
        }
    }
}

impl Plan {
    fn for_entry(entry: &CatalogueEntry, name: ModelName) -> Plan {
        Plan {
            name,
            file: entry.file.clone(),
            bytes: Some(entry.bytes),
            sha256: Some(entry.sha256.clone()),
            licence: Some(entry.licence.clone()),
            sources: entry.sources.clone(),
        }
    }

    fn for_hub(name: ModelName, file: HubFile) -> Plan {
        Plan {
            name,
            file: file.file_name().to_owned(),
            bytes: None,
            sha256: None,
            licence: None,
            sources: vec![Source::Hub(file)],
        }
    }

    fn for_local(name: ModelName, path: &Path) -> Result<Plan, StoreError> {
        // The absolute path, so that the manifest still says where it came from when read elsewhere.
        let path = std::path::absolute(path).map_err(StoreError::io("read", path))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !is_safe_file_name(&file) {
            let why = "the file's own name cannot be kept; rename the file";
            return Err(StoreError::BadName { name: file, why });
        }
        Ok(Plan { name, file, bytes: None, sha256: None, licence: None, sources: vec![Source::Local(path)] })
    }
}

/// Whether the stored model is what the plan would fetch. A pinned one is the same wherever it came from; others are
/// compared by where they came from.
fn reusable(plan: &Plan, model: ModelFile) -> Result<Option<ModelFile>, StoreError> {
    if plan.sha256.is_some() {
        return Ok(Some(model));
    }
    match plan.sources.iter().find(|source| model.came_from(&source.to_string())) {
        // Who copies the same path again has changed the file.
        Some(Source::Local(_)) => Ok(None),
        Some(_) => Ok(Some(model)),
        None => Err(StoreError::NameTaken {
            name: model.name,
            by: model.manifest.map_or_else(String::new, |manifest| manifest.source),
        }),
    }
}

/// From here on the model exists: first the file, then the manifest that makes it count.
fn install(
    plan: &Plan,
    folder: &Path,
    order: &Order,
    fetched: Fetched,
    source: &Source,
) -> Result<ModelFile, StoreError> {
    let path = folder.join(&plan.file);
    fs::create_dir_all(folder).map_err(|error| disk::write_failed(folder, 0, error))?;
    fs::rename(&fetched.path, &path).map_err(StoreError::io("move into place", &path))?;
    disk::sync_folder_of(&path);
    let model = write_manifest(plan, folder, fetched.sha256, source.to_string())?;
    // What other sources left half done is of no use any more; what cannot be removed does no harm.
    let _ = disk::remove_if_there(&order.folder);
    Ok(model)
}

fn write_manifest(plan: &Plan, folder: &Path, sha256: String, source: String) -> Result<ModelFile, StoreError> {
    let path = folder.join(&plan.file);
    let metadata = fs::metadata(&path).map_err(StoreError::io("read", &path))?;
    let manifest = Manifest {
        name: plan.name.to_string(),
        file: plan.file.clone(),
        bytes: metadata.len(),
        sha256,
        source,
        licence: plan.licence.clone(),
        pulled_at_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        mtime_unix_ns: manifest::mtime_unix_ns(&metadata),
    };
    manifest.write(folder)?;
    Ok(stored(path, manifest))
}
