//! The model store: a catalogue of named models, their sources, and the files on disk.
//!
//! A model is pulled once, checked against its SHA-256 while it is written, and lies from then on in
//! `<home>/models/<name>/` beside a `manifest.json`. Every file that appears there is complete: a transfer in
//! progress lives in `<home>/models/.partial/<name>/` and is renamed into place only after its check.
//!
//! The crate prints nothing and knows nothing of what is inside a model file. Who wants to show progress passes a
//! [`Progress`].

mod catalogue;
mod config;
mod digest;
mod disk;
mod error;
mod home;
mod lock;
mod manifest;
mod name;
mod partial;
mod progress;
mod pull;
mod sources;
mod store;
mod suggest;

pub use catalogue::{Catalogue, CatalogueEntry};
pub use config::{HubConfig, PipConfig, StoreConfig};
pub use error::{SourceError, SourceFailure, StoreError};
pub use home::default_home;
pub use manifest::Manifest;
pub use name::ModelName;
pub use progress::{Event, Progress};
pub use sources::{HubFile, Source, WheelMember};
pub use store::{Listed, ModelFile, Store};
pub use suggest::closest;
