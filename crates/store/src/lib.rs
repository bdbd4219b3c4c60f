//! The model store: a catalogue of named models, their sources, and the files on disk.
//!
//! A model is one file, or one to open and those that it needs beside it. It is pulled once, checked against its SHA-256
//! while it is written, and lies from then on in `<home>/models/<name>/` with a `manifest.json`. Every file that appears there is complete: a transfer in
//! progress lives in `<home>/models/.partial/<name>/` and is renamed into place only after its check.
//!
//! The crate prints nothing and knows nothing of what is inside a model file. Who wants to show progress passes a
//! [`Progress`].

mod adapters;
mod catalogue;
mod config;
mod derived;
mod digest;
mod disk;
mod error;
mod home;
mod lock;
mod manifest;
mod name;
mod ollama;
mod partial;
mod progress;
mod pull;
mod push;
mod settings;
mod shared;
mod sources;
mod store;
mod suggest;
mod trust;

pub use adapters::{ListedAdapter, StoredAdapter};
pub use catalogue::{Catalogue, CatalogueEntry, PinnedFile};
pub use config::{HubConfig, PipConfig, StoreConfig};
pub use error::{SourceError, SourceFailure, StoreError};
pub use home::default_home;
pub use manifest::{Manifest, StoredFile};
pub use name::ModelName;
pub use progress::{Event, Progress};
pub use settings::{FirstMessage, ModelSettings};
pub use sources::{ArchiveMember, HubFile, PinnedArchive, Source, WheelMember};
pub use store::{Listed, ModelFile, Store};
pub use suggest::{closest, misspelt};
pub use trust::{require_private, require_unwritable};
