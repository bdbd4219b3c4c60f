//! The packs of this machine: a folder for each version, and a file that says which one is used.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::pack::{Pack, PackError, Trust};

const STATE: &str = "installed.json";

#[derive(Debug, thiserror::Error)]
pub enum InstalledError {
    #[error("cannot use {}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} cannot be read: {error}", path.display())]
    State { path: PathBuf, error: serde_json::Error },
    #[error("no pack '{0}' is installed: `ruvllm kernels list` shows those that are")]
    Unknown(String),
    #[error("there is no earlier version of '{0}' to go back to")]
    NoPrevious(String),
    #[error("there is no kernel '{kernel}' in pack '{pack}': `ruvllm kernels show {pack}` lists them")]
    NoSuchKernel { pack: String, kernel: String },
    #[error("pack '{name}': {error}")]
    Pack { name: String, error: PackError },
}

/// What is known of an installed pack.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledPack {
    /// The folder of the version in use.
    folder: String,
    /// That of the version before it.
    previous: Option<String>,
    /// Whether it may be used.
    pub enabled: bool,
    /// Those of its kernels that may be used; `None` is all.
    pub kernels: Option<Vec<String>>,
    /// Whether it was accepted without a signature.
    pub unsigned: bool,
}

/// The folder of all installed packs.
#[derive(Clone, Debug)]
pub struct InstalledPacks {
    folder: PathBuf,
}

type State = BTreeMap<String, InstalledPack>;

impl InstalledPacks {
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub fn list(&self) -> Result<State, InstalledError> {
        let path = self.folder.join(STATE);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| InstalledError::State { path, error }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(State::new()),
            Err(error) => Err(InstalledError::Io { path, error }),
        }
    }

    pub fn get(&self, name: &str) -> Result<InstalledPack, InstalledError> {
        self.list()?.remove(name).ok_or_else(|| InstalledError::Unknown(name.to_owned()))
    }

    /// Copies a pack that was checked. The version in use until now is kept to go back to.
    pub fn install(&self, pack: &Pack) -> Result<InstalledPack, InstalledError> {
        let name = pack.manifest.name.clone();
        let folder = format!("{}-{}", pack.manifest.version, &pack.digest()[..12]);
        let to = self.folder.join(&name).join(&folder);
        if !to.exists() {
            self.copy(pack, &to).map_err(|error| InstalledError::Io { path: to, error })?;
        }
        let mut state = self.list()?;
        let before = state.get(&name);
        let installed = InstalledPack {
            previous: match before {
                Some(before) if before.folder == folder => before.previous.clone(),
                before => before.map(|before| before.folder.clone()),
            },
            folder,
            enabled: true,
            // An allow-list is of ids, some of which may be gone.
            kernels: before.and_then(|before| before.kernels.clone()).map(|mut ids| {
                ids.retain(|id| pack.manifest.kernel(id).is_some());
                ids
            }),
            unsigned: pack.signer.is_none(),
        };
        let unused = before.and_then(|before| before.previous.clone());
        state.insert(name.clone(), installed.clone());
        self.save(&state)?;
        if let Some(unused) = unused.filter(|it| *it != installed.folder && Some(it) != installed.previous.as_ref()) {
            self.remove_folder(&self.folder.join(&name).join(unused))?;
        }
        Ok(installed)
    }

    /// Opens an installed pack, and checks all of it again.
    pub fn open(&self, name: &str, trust: &Trust) -> Result<(Pack, InstalledPack), InstalledError> {
        let installed = self.get(name)?;
        let trust = Trust { allow_unsigned: installed.unsigned || trust.allow_unsigned, ..trust.clone() };
        let pack = Pack::open(&self.folder.join(name).join(&installed.folder), &trust);
        let pack = pack.map_err(|error| InstalledError::Pack { name: name.to_owned(), error })?;
        Ok((pack, installed))
    }

    /// Sets whether a pack may be used, and which of its kernels.
    pub fn enable(&self, name: &str, enabled: bool, kernels: Option<Vec<String>>) -> Result<(), InstalledError> {
        self.change(name, |installed| {
            installed.enabled = enabled;
            if enabled {
                installed.kernels = kernels;
            }
            Ok(())
        })
    }

    /// Goes back to the version before; doing it again returns to this one.
    pub fn rollback(&self, name: &str) -> Result<(), InstalledError> {
        self.change(name, |installed| {
            let previous = installed.previous.take().ok_or_else(|| InstalledError::NoPrevious(name.to_owned()))?;
            installed.previous = Some(std::mem::replace(&mut installed.folder, previous));
            Ok(())
        })
    }

    pub fn remove(&self, name: &str) -> Result<(), InstalledError> {
        let mut state = self.list()?;
        state.remove(name).ok_or_else(|| InstalledError::Unknown(name.to_owned()))?;
        self.save(&state)?;
        self.remove_folder(&self.folder.join(name))
    }

    fn change(
        &self,
        name: &str,
        change: impl FnOnce(&mut InstalledPack) -> Result<(), InstalledError>,
    ) -> Result<(), InstalledError> {
        let mut state = self.list()?;
        change(state.get_mut(name).ok_or_else(|| InstalledError::Unknown(name.to_owned()))?)?;
        self.save(&state)
    }

    /// A folder is complete when it appears under its name.
    fn copy(&self, pack: &Pack, to: &Path) -> io::Result<()> {
        let mut partial = to.as_os_str().to_owned();
        partial.push(format!(".partial-{}", std::process::id()));
        let partial = PathBuf::from(partial);
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        for (path, bytes) in pack.files() {
            let file = partial.join(path);
            fs::create_dir_all(file.parent().unwrap_or(&partial))?;
            fs::write(file, bytes)?;
        }
        fs::rename(&partial, to)
    }

    fn save(&self, state: &State) -> Result<(), InstalledError> {
        let path = self.folder.join(STATE);
        let partial = self.folder.join(format!("{STATE}.partial-{}", std::process::id()));
        let text =
            serde_json::to_vec_pretty(state).map_err(|error| InstalledError::State { path: path.clone(), error })?;
        let written = fs::create_dir_all(&self.folder).and_then(|()| {
            let mut file = fs::File::create(&partial)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        });
        written.map_err(|error| InstalledError::Io { path, error })
    }

    fn remove_folder(&self, path: &Path) -> Result<(), InstalledError> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(InstalledError::Io { path: path.to_owned(), error })
            }
            _ => Ok(()),
        }
    }
}
