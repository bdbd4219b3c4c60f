//! Errors in settings.

use std::io;
use std::path::PathBuf;

use super::settings::Origin;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}, line {line}: {why}", path.display())]
    Syntax { path: PathBuf, line: usize, why: String },
    #[error("{}, line {line}: '{key}' is not a key of {place}{}", path.display(), hint(suggestion))]
    UnknownKey { path: PathBuf, line: usize, place: String, key: String, suggestion: Option<String> },
    #[error("{origin}: '{key}' must be {expected}, not {got}")]
    WrongType { origin: Origin, key: String, expected: &'static str, got: String },
    #[error("{origin}: '{key}' cannot be '{value}': {why}")]
    WrongValue { origin: Origin, key: String, value: String, why: String },
    #[error(transparent)]
    Home(#[from] ruvllm_store::StoreError),
}

fn hint(suggestion: &Option<String>) -> String {
    match suggestion {
        Some(name) => format!("; did you mean '{name}'?"),
        None => "; `ruvllm config show` lists all keys".to_owned(),
    }
}
