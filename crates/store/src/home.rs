//! Where the store lies, and where each thing lies within it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::name::ModelName;

/// `RUVLLM_HOME`, or `.ruvllm` in the user's home folder. Nothing is created.
pub fn default_home() -> Result<PathBuf, StoreError> {
    home_from(std::env::var_os("RUVLLM_HOME"), std::env::home_dir())
}

fn home_from(ruvllm_home: Option<OsString>, user_home: Option<PathBuf>) -> Result<PathBuf, StoreError> {
    // Set but empty is what `RUVLLM_HOME= ruvllm …` gives; people mean "unset" by it.
    match ruvllm_home.filter(|value| !value.is_empty()) {
        Some(home) => Ok(PathBuf::from(home)),
        None => user_home
            .filter(|home| !home.as_os_str().is_empty())
            .map(|home| home.join(".ruvllm"))
            .ok_or(StoreError::NoHome),
    }
}

/// The paths inside a home. Folder names that begin with a dot cannot be model names, so they never collide.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    models: PathBuf,
}

impl Layout {
    pub(crate) fn new(home: &Path) -> Layout {
        Layout { models: home.join("models") }
    }

    /// Adapters have locks and partial files of their own.
    pub(crate) fn of_adapters(home: &Path) -> Layout {
        Layout { models: home.join("adapters") }
    }

    pub(crate) fn models(&self) -> &Path {
        &self.models
    }

    pub(crate) fn model(&self, name: &ModelName) -> PathBuf {
        self.models.join(name.folder_name())
    }

    /// On the same file system as the model's folder, so that finishing a pull is a rename.
    pub(crate) fn partial(&self, name: &ModelName) -> PathBuf {
        self.models.join(".partial").join(name.folder_name())
    }

    /// What was checked of a model that lies in a folder of others.
    pub(crate) fn checked(&self, name: &ModelName) -> PathBuf {
        self.models.join(".checked").join(name.folder_name()).with_added_extension("json")
    }

    /// Models that are made from others.
    pub(crate) fn derived_folder(&self) -> PathBuf {
        self.models.join(".derived")
    }

    pub(crate) fn derived(&self, name: &ModelName) -> PathBuf {
        self.derived_folder().join(name.folder_name()).with_added_extension("json")
    }

    pub(crate) fn lock(&self, name: &ModelName) -> PathBuf {
        self.models.join(".locks").join(name.folder_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_wins_over_home_folder() {
        let home = home_from(Some("/data/llm".into()), Some("/home/ann".into())).unwrap();
        assert_eq!(home, Path::new("/data/llm"));
    }

    #[test]
    fn empty_environment_counts_as_unset() {
        let home = home_from(Some("".into()), Some("/home/ann".into())).unwrap();
        assert_eq!(home, Path::new("/home/ann/.ruvllm"));
    }

    #[test]
    fn without_any_home_the_error_names_the_variable() {
        let error = home_from(None, None).unwrap_err();
        assert!(error.to_string().contains("RUVLLM_HOME"), "{error}");
    }
}
