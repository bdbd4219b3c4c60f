//! Bringing a model into the store: under its lock, from the first source that delivers, checked, renamed into place.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::catalogue::{CatalogueEntry, PinnedFile};
use crate::disk;
use crate::error::{SourceError, SourceFailure, StoreError};
use crate::lock::ModelLock;
use crate::manifest::{self, Manifest, StoredFile};
use crate::name::{self, ModelName, is_safe_file_name};
use crate::progress::{Event, Progress};
use crate::sources::{
    Choice, FetchError, Fetched, Fetcher, HubEntry, HubFile, HubRepo, Source, beginning, choose, offer,
};
use crate::store::{Meaning, ModelFile, Store, sha256_of, stored};

/// What to fetch, under which name, and from where.
#[derive(Debug)]
struct Plan {
    name: ModelName,
    /// The main file first.
    files: Vec<Wanted>,
    licence: Option<String>,
    /// Each has a place for every file.
    offers: Vec<Vec<Source>>,
}

/// One file of a plan, pinned or not.
#[derive(Debug)]
struct Wanted {
    /// Within the model's folder.
    file: String,
    bytes: Option<u64>,
    sha256: Option<String>,
}

impl Store {
    /// Fetches a catalogue model, a hub file (`hf:owner/repo/file.gguf@revision`) or a local file into the store, or
    /// finds it there intact. A damaged model is fetched anew.
    pub fn pull(&self, spec: &str, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let plan = match self.meaning_of(spec)? {
            Meaning::Entry(entry, name) => Plan::for_entry(entry, name),
            Meaning::Hub(file) => Plan::for_hub(file.default_name()?, file),
            Meaning::Repo(repo) => match self.resolve(spec) {
                Ok(model) => return Ok(model),
                Err(_) => self.plan_for_repo(repo.default_name()?, &repo, progress)?,
            },
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
            Meaning::Repo(repo) => self.plan_for_repo(name, &repo, progress)?,
            Meaning::File(path) => Plan::for_local(name, path)?,
            Meaning::Name(unknown) => return Err(self.unknown(unknown.as_str())),
        };
        self.carry_out(&plan, progress)
    }

    /// Like [`Store::pull`], for callers who must not reach files of this machine: models of the catalogue and of the hub,
    /// and those that came from there.
    pub fn pull_remote(&self, spec: &str, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let plan = match self.meaning_of_name(spec)? {
            Meaning::Entry(entry, name) => Plan::for_entry(entry, name),
            Meaning::Hub(file) => Plan::for_hub(file.default_name()?, file),
            Meaning::Repo(repo) => self.plan_for_repo(repo.default_name()?, &repo, progress)?,
            Meaning::File(_) => return Err(StoreError::NotRemote { spec: spec.to_owned() }),
            Meaning::Name(name) => {
                // What is here already and cannot be fetched, such as a model of Ollama, is as good as pulled.
                let plan = match self.plan_from_manifest(name) {
                    Err(StoreError::Unknown { .. }) => return self.named(spec),
                    plan => plan?,
                };
                if plan.offers.iter().flatten().any(|source| matches!(source, Source::Local(_))) {
                    return self.named(spec);
                }
                plan
            }
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
        match self.intact(&plan.name, plan.pinned().as_deref(), progress) {
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

    /// A pull that was killed between the last two steps left the files without their manifest.
    fn adopt(&self, plan: &Plan, folder: &Path, progress: &mut dyn Progress) -> Result<Option<ModelFile>, StoreError> {
        let Some(pinned) = plan.pinned() else {
            return Ok(None);
        };
        for pin in &pinned {
            let path = folder.join(&pin.file);
            match manifest::metadata_of(&path)? {
                Some(metadata) if metadata.len() == pin.bytes => {}
                _ => return Ok(None),
            }
            if sha256_of(&path, pin.bytes, progress)? != pin.sha256 {
                return Ok(None);
            }
        }
        let hashes = pinned.into_iter().map(|pin| pin.sha256).collect();
        write_manifest(plan, folder, hashes, "found in the store".to_owned()).map(Some)
    }

    fn fetch_from_any(&self, plan: &Plan, folder: &Path, progress: &mut dyn Progress) -> Result<ModelFile, StoreError> {
        let partial = self.layout.partial(&plan.name);
        let mut fetcher = Fetcher::new(&self.config.hub, &self.config.pip, &partial)?;
        // What one source delivered before it failed, another need not.
        let mut fetched = Vec::new();
        let mut failures = Vec::new();
        for offer in &plan.offers {
            let named = offer.first().map_or_else(String::new, Source::to_string);
            progress.report(Event::TrySource { source: named.clone() });
            match fetch_rest(&mut fetcher, plan, offer, &mut fetched, progress) {
                Ok(()) => {
                    let model = install(plan, folder, fetched, named)?;
                    drop(fetcher);
                    // What other sources left half done is of no use any more; what cannot be removed does no harm.
                    let _ = disk::remove_if_there(&partial);
                    return Ok(model);
                }
                Err(FetchError::Store(error)) => return Err(error),
                Err(FetchError::Source(why)) => {
                    progress.report(Event::SourceFailed { source: named.clone(), why: why.to_string() });
                    failures.push(SourceFailure { source: named, why });
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
        // A model of the catalogue under another name has the sources that it has there.
        let is_it = |entry: &&CatalogueEntry| {
            let came_from = |offer: &Vec<Source>| offer.first().is_some_and(|main| main.to_string() == manifest.source);
            entry.files.first().is_some_and(|main| main.sha256 == manifest.main.sha256)
                && entry.offers.iter().any(came_from)
        };
        if let Some(entry) = self.config.catalogue.entries.iter().find(is_it) {
            return Ok(Plan::for_entry(entry, name));
        }
        let source = match HubFile::parse(&manifest.source).transpose()? {
            Some(file) => Source::Hub(file),
            None => Source::Local(manifest.source.clone().into()),
        };
        // Files of a repository lie beside each other there too.
        let place = |stored: &StoredFile| match &source {
            Source::Hub(main) if !manifest.beside.is_empty() => {
                Source::Hub(HubFile { file: stored.file.clone(), ..main.clone() })
            }
            source => source.clone(),
        };
        let offer = manifest.files().map(place).collect();
        let wanted = |file: &StoredFile| Wanted {
            file: file.file.clone(),
            bytes: Some(file.bytes),
            sha256: Some(file.sha256.clone()),
        };
        let files = manifest.files().map(wanted).collect();
        Ok(Plan { name, files, licence: manifest.licence, offers: vec![offer] })
    }

    /// Asks the hub what a repository holds, and chooses.
    fn plan_for_repo(&self, name: ModelName, repo: &HubRepo, progress: &mut dyn Progress) -> Result<Plan, StoreError> {
        let chosen = repo.list(&self.config.hub).and_then(|files| {
            choose(&files, self.config.file_bytes_max).map_err(|why| SourceError::NothingToRun { why })
        });
        let Choice { files, why, others } = chosen.map_err(|why| StoreError::AllSourcesFailed {
            name: name.to_string(),
            failures: vec![SourceFailure { source: repo.to_string(), why }],
        })?;
        let bytes = files.iter().map(|listed| listed.bytes).fold(0, u64::saturating_add);
        let file = files.first().map_or_else(String::new, |main| main.file.clone());
        progress.report(Event::Chosen { file, bytes, why, others });
        let wanted = |listed: &HubEntry| Wanted {
            file: listed.file.clone(),
            bytes: Some(listed.bytes),
            sha256: listed.sha256.clone(),
        };
        let offers = vec![offer(repo, &files)];
        Ok(Plan { name, files: files.iter().map(wanted).collect(), licence: None, offers })
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
        let wanted = |pin: &PinnedFile| Wanted {
            file: pin.file.clone(),
            bytes: Some(pin.bytes),
            sha256: Some(pin.sha256.clone()),
        };
        // What is not pinned is a file of the hub.
        let files = match (entry.pinned(), entry.offers.first().and_then(|offer| offer.first())) {
            (None, Some(Source::Hub(file))) => {
                vec![Wanted { file: file.file_name().to_owned(), bytes: None, sha256: None }]
            }
            _ => entry.files.iter().map(wanted).collect(),
        };
        Plan { name, files, licence: Some(entry.licence.clone()), offers: entry.offers.clone() }
    }

    fn for_hub(name: ModelName, file: HubFile) -> Plan {
        Plan::for_one_file(name, file.file_name().to_owned(), Source::Hub(file))
    }

    fn for_local(name: ModelName, path: &Path) -> Result<Plan, StoreError> {
        if path.is_dir() {
            return Err(StoreError::IsFolder { path: path.to_owned() });
        }
        // The absolute path, so that the manifest still says where it came from when read elsewhere.
        let path = std::path::absolute(path).map_err(StoreError::io("read", path))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !is_safe_file_name(&file) {
            let why = "the file's own name cannot be kept; rename the file";
            return Err(StoreError::BadName { name: file, why });
        }
        Ok(Plan::for_one_file(name, file, Source::Local(path)))
    }

    fn for_one_file(name: ModelName, file: String, source: Source) -> Plan {
        let wanted = Wanted { file, bytes: None, sha256: None };
        Plan { name, files: vec![wanted], licence: None, offers: vec![vec![source]] }
    }

    /// Its files, if all of them are pinned.
    fn pinned(&self) -> Option<Vec<PinnedFile>> {
        let pin = |wanted: &Wanted| Some(PinnedFile::new(&wanted.file, wanted.bytes?, wanted.sha256.as_ref()?));
        self.files.iter().map(pin).collect()
    }
}

/// Whether the stored model is what the plan would fetch. A pinned one is the same wherever it came from; others are
/// compared by where they came from.
fn reusable(plan: &Plan, model: ModelFile) -> Result<Option<ModelFile>, StoreError> {
    if plan.pinned().is_some() {
        return Ok(Some(model));
    }
    match plan.offers.iter().flatten().find(|source| model.came_from(&source.to_string())) {
        // Who copies the same path again has changed the file.
        Some(Source::Local(_)) => Ok(None),
        Some(_) => Ok(Some(model)),
        None => Err(StoreError::NameTaken {
            name: model.name,
            by: model.manifest.map_or_else(String::new, |manifest| manifest.source),
        }),
    }
}

/// Fetches the files that are not among `fetched` yet.
fn fetch_rest(
    fetcher: &mut Fetcher,
    plan: &Plan,
    offer: &[Source],
    fetched: &mut Vec<Fetched>,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    for (wanted, source) in plan.files.iter().zip(offer).skip(fetched.len()) {
        fetched.push(fetcher.fetch(source, wanted.bytes, wanted.sha256.as_deref(), beginning(source), progress)?);
    }
    Ok(())
}

/// From here on the model exists: first the files, then the manifest that makes them count.
fn install(plan: &Plan, folder: &Path, fetched: Vec<Fetched>, source: String) -> Result<ModelFile, StoreError> {
    let mut hashes = Vec::new();
    for (wanted, fetched) in plan.files.iter().zip(fetched) {
        let path = folder.join(&wanted.file);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent).map_err(|error| disk::write_failed(parent, 0, error))?;
        fs::rename(&fetched.path, &path).map_err(StoreError::io("move into place", &path))?;
        disk::sync_folder_of(&path);
        hashes.push(fetched.sha256);
    }
    write_manifest(plan, folder, hashes, source)
}

/// `hashes` are those of the plan's files.
fn write_manifest(plan: &Plan, folder: &Path, hashes: Vec<String>, source: String) -> Result<ModelFile, StoreError> {
    let describe = |(wanted, sha256): (&Wanted, String)| {
        let path = folder.join(&wanted.file);
        let metadata = fs::metadata(&path).map_err(StoreError::io("read", &path))?;
        let mtime_unix_ns = manifest::mtime_unix_ns(&metadata);
        Ok(StoredFile { file: wanted.file.clone(), bytes: metadata.len(), sha256, mtime_unix_ns })
    };
    let mut files = plan.files.iter().zip(hashes).map(describe).collect::<Result<Vec<_>, StoreError>>()?.into_iter();
    // Every plan has files, and all of them were fetched.
    let nothing = || StoreError::AllSourcesFailed { name: plan.name.to_string(), failures: Vec::new() };
    let main = files.next().ok_or_else(nothing)?;
    let manifest = Manifest {
        name: plan.name.to_string(),
        main,
        beside: files.collect(),
        source,
        licence: plan.licence.clone(),
        pulled_at_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    };
    manifest.write(folder)?;
    Ok(stored(folder, manifest))
}
