//! Bringing an adapter into the store: its files are fetched and hashed, judged by the caller, and moved into place.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, StoredAdapter, all_adapters, digest_of, is_peft_folder};
use crate::disk;
use crate::error::{SourceFailure, StoreError};
use crate::lock::ModelLock;
use crate::manifest::{self, Manifest, StoredFile};
use crate::name::{self, ModelName, is_safe_file_name};
use crate::progress::{Event, Progress};
use crate::sources::{FetchError, Fetched, Fetcher, HubEntry, HubFile, HubRepo, Source};
use crate::store::Store;

/// What to fetch, and under which name unless the user gives another.
struct Plan {
    default_name: ModelName,
    source: String,
    /// The one to open first.
    files: Vec<Wanted>,
}

struct Wanted {
    file: String,
    bytes: Option<u64>,
    sha256: Option<String>,
    from: Source,
}

impl Store {
    /// Fetches an adapter from a folder of PEFT, a file, or `hf:owner/repo`, under its own name or `name`. A name that exists
    /// means the new files from then on. `check` says why the files at a path are no adapter, before they get a name.
    pub fn pull_adapter(
        &self,
        spec: &str,
        name: Option<&str>,
        check: &dyn Fn(&Path) -> Result<(), String>,
        progress: &mut dyn Progress,
    ) -> Result<StoredAdapter, StoreError> {
        let plan = self.plan_adapter(spec)?;
        let name = name.map_or(Ok(plan.default_name.clone()), ModelName::parse)?;
        let layout = self.adapters_layout();
        fs::create_dir_all(layout.models()).map_err(StoreError::io("create", layout.models()))?;
        let _lock = ModelLock::wait(&layout, &all_adapters()?, progress)?;
        let partial = layout.partial(&name);
        let fetched = self.fetch_adapter(&plan, &name, &partial, progress)?;
        let staged = partial.join("staged");
        let installed = self.install_adapter(&plan, &name, fetched, &staged, check, spec);
        // What is left there is of no use any more, and does no harm if it cannot be removed.
        let _ = disk::remove_if_there(&partial);
        let adapter = installed?;
        progress.report(Event::Done { path: adapter.path.clone() });
        Ok(adapter)
    }

    fn plan_adapter(&self, spec: &str) -> Result<Plan, StoreError> {
        if let Some(repo) = HubRepo::parse(spec) {
            return self.plan_adapter_repo(spec, &repo);
        }
        match HubFile::parse(spec) {
            Some(file) => plan_hub_file(spec, file?),
            None => plan_local(spec),
        }
    }

    /// Asks the hub what a repository holds: an adapter of PEFT, or one GGUF file.
    fn plan_adapter_repo(&self, spec: &str, repo: &HubRepo) -> Result<Plan, StoreError> {
        let default_name = repo.default_name()?;
        let files = repo.list(&self.config.hub).map_err(|why| StoreError::AllSourcesFailed {
            name: default_name.to_string(),
            failures: vec![SourceFailure { source: repo.to_string(), why }],
        })?;
        let named = |name: &str| files.iter().find(|listed| listed.file == name);
        let is_gguf = |listed: &&HubEntry| listed.file.to_ascii_lowercase().ends_with(".gguf");
        let ggufs: Vec<&HubEntry> = files.iter().filter(is_gguf).collect();
        let chosen = match (named(ADAPTER_CONFIG), named(ADAPTER_WEIGHTS), &ggufs[..]) {
            (Some(config), Some(weights), _) => vec![config, weights],
            (_, _, [gguf]) => vec![*gguf],
            (_, _, [_, ..]) => {
                let files: Vec<&str> = ggufs.iter().map(|listed| listed.file.as_str()).take(8).collect();
                let why = format!("it has several GGUF files ({}); name one", files.join(", "));
                return Err(no_adapter(spec, why));
            }
            (Some(_), None, []) if named("adapter_model.bin").is_some() => {
                let why = "its weights are in adapter_model.bin, which could run code when it is read; save them again with \
                           safe_serialization=True";
                return Err(no_adapter(spec, why.to_owned()));
            }
            _ => return Err(no_adapter(spec, "the repository has none of their files".to_owned())),
        };
        let wanted = |listed: &HubEntry| Wanted {
            file: listed.file.clone(),
            bytes: Some(listed.bytes),
            sha256: listed.sha256.clone(),
            from: Source::Hub(repo.file(&listed.file)),
        };
        Ok(Plan { default_name, source: repo.to_string(), files: chosen.into_iter().map(wanted).collect() })
    }

    fn fetch_adapter(
        &self,
        plan: &Plan,
        name: &ModelName,
        partial: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Fetched>, StoreError> {
        progress.report(Event::TrySource { source: plan.source.clone() });
        let mut fetcher = Fetcher::new(&self.config.hub, &self.config.pip, partial)?;
        let mut fetched = Vec::new();
        for wanted in &plan.files {
            let got =
                fetcher.fetch(&wanted.from, wanted.bytes, wanted.sha256.as_deref(), beginning(&wanted.file), progress);
            fetched.push(got.map_err(|error| match error {
                FetchError::Store(error) => error,
                FetchError::Source(why) => StoreError::AllSourcesFailed {
                    name: name.to_string(),
                    failures: vec![SourceFailure { source: wanted.from.to_string(), why }],
                },
            })?);
        }
        Ok(fetched)
    }

    /// Puts the files together, has them judged, and gives them the name.
    fn install_adapter(
        &self,
        plan: &Plan,
        name: &ModelName,
        fetched: Vec<Fetched>,
        staged: &Path,
        check: &dyn Fn(&Path) -> Result<(), String>,
        spec: &str,
    ) -> Result<StoredAdapter, StoreError> {
        disk::remove_if_there(staged)?;
        fs::create_dir_all(staged).map_err(|error| disk::write_failed(staged, 0, error))?;
        let mut files = Vec::new();
        for (wanted, fetched) in plan.files.iter().zip(fetched) {
            let path = staged.join(&wanted.file);
            fs::rename(&fetched.path, &path).map_err(StoreError::io("move into place", &path))?;
            let metadata = fs::metadata(&path).map_err(StoreError::io("read", &path))?;
            let mtime_unix_ns = manifest::mtime_unix_ns(&metadata);
            let sha256 = fetched.sha256;
            files.push(StoredFile { file: wanted.file.clone(), bytes: metadata.len(), sha256, mtime_unix_ns });
        }
        let mut files = files.into_iter();
        let main = files.next().ok_or_else(|| no_adapter(spec, "it has no files".to_owned()))?;
        let open = if main.file == ADAPTER_CONFIG { staged.to_owned() } else { main.path_in(staged) };
        check(&open).map_err(|why| no_adapter(spec, why))?;
        let manifest = Manifest {
            name: name.to_string(),
            main,
            beside: files.collect(),
            source: plan.source.clone(),
            licence: None,
            pulled_at_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        self.name_adapter(name, manifest, staged)
    }

    fn name_adapter(&self, name: &ModelName, manifest: Manifest, staged: &Path) -> Result<StoredAdapter, StoreError> {
        let content = self.content_folder(&digest_of(&manifest));
        if content.exists() {
            // The same bytes, perhaps damaged since.
            disk::remove_if_there(&content)?;
        }
        let parent = content.parent().unwrap_or(&content);
        fs::create_dir_all(parent).map_err(|error| disk::write_failed(parent, 0, error))?;
        fs::rename(staged, &content).map_err(StoreError::io("move into place", &content))?;
        disk::sync_folder_of(&content);
        let folder = self.adapters_layout().model(name);
        let before = Manifest::read(&folder, name).ok().flatten().map(|manifest| digest_of(&manifest));
        fs::create_dir_all(&folder).map_err(|error| disk::write_failed(&folder, 0, error))?;
        manifest.write(&folder)?;
        self.sweep_adapters(before.as_deref())?;
        Ok(self.stored_adapter(manifest))
    }
}

/// A GGUF file, or the weights of PEFT with the configuration beside them.
fn plan_hub_file(spec: &str, file: HubFile) -> Result<Plan, StoreError> {
    let names = match file.file_name() {
        ADAPTER_WEIGHTS | ADAPTER_CONFIG => vec![ADAPTER_CONFIG, ADAPTER_WEIGHTS],
        name if name.to_ascii_lowercase().ends_with(".gguf") => vec![name],
        _ => return Err(no_adapter(spec, "the file is neither adapter_model.safetensors nor a GGUF file".to_owned())),
    };
    let folder = file.file.strip_suffix(file.file_name()).unwrap_or_default();
    let wanted = |name: &&str| Wanted {
        file: (*name).to_owned(),
        bytes: None,
        sha256: None,
        from: Source::Hub(HubFile { file: format!("{folder}{name}"), ..file.clone() }),
    };
    let files = names.iter().map(wanted).collect();
    let default_name = match HubRepo::of(&file) {
        repo if file.file_name() == ADAPTER_WEIGHTS || file.file_name() == ADAPTER_CONFIG => repo.default_name()?,
        _ => file.default_name()?,
    };
    Ok(Plan { default_name, source: file.to_string(), files })
}

fn plan_local(spec: &str) -> Result<Plan, StoreError> {
    // The absolute path, so that the manifest still says where it came from when read elsewhere.
    let path = std::path::absolute(spec).map_err(StoreError::io("read", Path::new(spec)))?;
    let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (folder, files): (PathBuf, Vec<String>) = if is_peft_folder(&path) {
        (path.clone(), vec![ADAPTER_CONFIG.to_owned(), ADAPTER_WEIGHTS.to_owned()])
    } else if path.is_dir() {
        return Err(no_adapter(spec, format!("the folder has no {ADAPTER_CONFIG}")));
    } else if !path.is_file() {
        return Err(no_adapter(spec, "there is no such file or folder".to_owned()));
    } else if file_name == ADAPTER_WEIGHTS {
        let folder = path.parent().unwrap_or(&path).to_owned();
        (folder, vec![ADAPTER_CONFIG.to_owned(), ADAPTER_WEIGHTS.to_owned()])
    } else if file_name.to_ascii_lowercase().ends_with(".gguf") && is_safe_file_name(&file_name) {
        (path.parent().unwrap_or(&path).to_owned(), vec![file_name.clone()])
    } else {
        return Err(no_adapter(spec, format!("the file is neither {ADAPTER_WEIGHTS} nor a GGUF file")));
    };
    let named_by = if files.len() == 1 { Path::new(&file_name).file_stem() } else { folder.file_name() };
    let default_name = ModelName::parse(&name::plain(&named_by.unwrap_or_default().to_string_lossy()))?;
    let wanted = |file: String| Wanted { from: Source::Local(folder.join(&file)), file, bytes: None, sha256: None };
    Ok(Plan { default_name, source: path.display().to_string(), files: files.into_iter().map(wanted).collect() })
}

/// Returns how a file begins, as far as its name tells. Safetensors begin with a length.
fn beginning(file: &str) -> &'static [u8] {
    match file {
        ADAPTER_CONFIG => b"{",
        ADAPTER_WEIGHTS => b"",
        _ => b"GGUF",
    }
}

fn no_adapter(spec: &str, why: String) -> StoreError {
    StoreError::NoAdapter { spec: spec.chars().take(200).collect::<String>().escape_debug().to_string(), why }
}
