//! Where models come from. Each source turns an order into a checked file in the partial folder, or says why not.

mod archive;
mod http;
mod hub;
mod hub_choice;
mod hub_repo;
mod local;
mod parallel;
mod pip;
mod transfer;
mod unpack;
mod wheel;

use std::fmt;
use std::path::{Path, PathBuf};

pub use archive::{ArchiveMember, PinnedArchive};
pub use hub::HubFile;
pub(crate) use hub_choice::{Choice, choose};
pub(crate) use hub_repo::{HubEntry, HubRepo, offer};
pub use wheel::WheelMember;

use crate::config::{HubConfig, PipConfig};
use crate::error::{SourceError, StoreError};
use crate::progress::Progress;

use archive::Archives;
use wheel::Packages;

/// The main file of a model that is a folder of safetensors: it is there whatever the weights are cut into.
pub(crate) const MODEL_CONFIG: &str = "config.json";

/// One place that may have the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Hub(HubFile),
    /// Packages whose named members, one after the other, make up the file.
    Wheels(Vec<WheelMember>),
    /// A file in an archive that is cut into packages.
    Archive(ArchiveMember),
    Local(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Hub(file) => file.fmt(formatter),
            Source::Wheels(members) => write_packages(members, formatter),
            Source::Archive(wanted) => write_packages(&wanted.archive.parts, formatter),
            Source::Local(path) => path.display().fmt(formatter),
        }
    }
}

fn write_packages(members: &[WheelMember], formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    match members {
        [] => formatter.write_str("no package"),
        [only] => write!(formatter, "pip:{}=={}", only.package, only.version),
        [first, .., last] => write!(formatter, "pip:{}=={} … {}", first.package, first.version, last.package),
    }
}

/// What is wanted, whichever source delivers it.
#[derive(Debug)]
pub(crate) struct Order {
    /// For partial files; on the store's own file system.
    pub(crate) folder: PathBuf,
    pub(crate) bytes: Option<u64>,
    pub(crate) sha256: Option<String>,
    /// How a file begins whose hash is not known; another is an error page, or no model.
    pub(crate) begins: &'static [u8],
}

/// A complete file that has passed its check and waits to be renamed into place.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) path: PathBuf,
    pub(crate) sha256: String,
}

/// Whether another source is worth trying: a fault of the source, or one of our own disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Fetches the files of one model. What several of them come out of, a package or an archive, is fetched once.
#[derive(Debug)]
pub(crate) struct Fetcher<'a> {
    hub: &'a HubConfig,
    /// For partial files; on the store's own file system.
    folder: PathBuf,
    packages: Packages<'a>,
    archives: Archives,
}

impl<'a> Fetcher<'a> {
    /// The caller holds the model's lock: what lies in `folder` is nobody else's.
    pub(crate) fn new(hub: &'a HubConfig, pip: &'a PipConfig, folder: &Path) -> Result<Fetcher<'a>, StoreError> {
        let packages = Packages::new(pip, folder)?;
        Ok(Fetcher { hub, folder: folder.to_owned(), packages, archives: Archives::default() })
    }

    /// With the size and hash that are demanded, if any are. `begins` is how the file begins if its hash is not known.
    pub(crate) fn fetch(
        &mut self,
        source: &Source,
        bytes: Option<u64>,
        sha256: Option<&str>,
        begins: &'static [u8],
        progress: &mut dyn Progress,
    ) -> Result<Fetched, FetchError> {
        let order = Order { folder: self.folder.clone(), bytes, sha256: sha256.map(str::to_owned), begins };
        match source {
            Source::Hub(file) => transfer::fetch(self.hub, file, &order, progress),
            Source::Wheels(members) => wheel::fetch(&mut self.packages, members, &order, progress),
            Source::Archive(wanted) => self.archives.fetch(&mut self.packages, wanted, &order, progress),
            Source::Local(path) => local::fetch(path, &order, progress),
        }
    }
}

/// Returns how the file of a model begins, as far as the name of its source tells.
pub(crate) fn beginning(source: &Source) -> &'static [u8] {
    match source {
        Source::Hub(file) if file.file.ends_with(".json") => b"{",
        Source::Hub(file) if file.file.ends_with(".jinja") => b"",
        _ => b"GGUF",
    }
}

/// Whether `spec` is written as a path, existing or not: only a path can begin or end like this.
pub(crate) fn is_written_as_path(spec: &str) -> bool {
    let begins = ["./", "../", "/", "~/", ".\\", "..\\", "\\"];
    let ends = [".gguf", ".safetensors"];
    let lower = spec.to_ascii_lowercase();
    begins.iter().any(|prefix| spec.starts_with(prefix)) || ends.iter().any(|suffix| lower.ends_with(suffix))
}

/// The file or the folder of a model that `spec` names, if it is a path to one that exists.
pub(crate) fn local_file(spec: &str) -> Option<&Path> {
    let path = Path::new(spec);
    let could_be_path = is_written_as_path(spec) || spec.contains(std::path::is_separator);
    (could_be_path && !spec.starts_with(hub::SCHEME) && (path.is_file() || is_model_folder(path))).then_some(path)
}

/// Whether a folder has what a model of several files is known by.
pub(crate) fn is_model_folder(path: &Path) -> bool {
    path.join(MODEL_CONFIG).is_file()
}
