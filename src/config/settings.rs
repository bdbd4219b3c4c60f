//! Where values come from, and which one applies.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Command;

use super::error::ConfigError;
use super::file::{self, ConfigFile};
use super::schema::{Key, find, keys_of};
use super::{apply, environment};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File { path: PathBuf, line: usize },
    Variable(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}, line {line}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// A value for a flag of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub key: String,
    /// Name of the flag in clap.
    pub argument: String,
    /// More than one if the flag can be repeated.
    pub values: Vec<String>,
    pub origin: Origin,
}

impl Setting {
    /// Whether a text mentions the setting, as a key or as a flag.
    pub(super) fn is_named_in(&self, text: &str) -> bool {
        let is_in_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let mut words = text.split(|c| !is_in_word(c));
        words.any(|word| word == self.key || word.trim_start_matches('-').replace('-', "_") == self.key)
    }
}

/// The file, if it exists, and the variables of this process.
#[derive(Debug)]
pub struct Sources {
    pub file: Option<ConfigFile>,
}

impl Sources {
    /// Reads the file and checks that it has no unknown keys.
    pub fn find(root: &Command, flag: Option<PathBuf>) -> Result<Self, ConfigError> {
        let location = file::location(flag)?;
        let file = ConfigFile::read(&location)?;
        if let Some(file) = &file {
            file.check_keys(root)?;
        }
        Ok(Self { file })
    }

    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(ConfigFile::path)
    }

    /// Returns all settings for a command, checked.
    pub fn for_command(&self, root: &Command, path: &[String]) -> Result<Vec<Setting>, ConfigError> {
        let Some(command) = find(root, path) else { return Ok(Vec::new()) };
        let mut settings = Vec::new();
        for key in keys_of(command) {
            if let Some(setting) = self.value(path, &key)? {
                apply::check(command, &key, &setting)?;
                settings.push(setting);
            }
        }
        Ok(settings)
    }

    /// Returns the most specific value; variables come before the file.
    fn value(&self, path: &[String], key: &Key) -> Result<Option<Setting>, ConfigError> {
        if let Some(setting) = environment::value(path, key)? {
            return Ok(Some(setting));
        }
        match &self.file {
            Some(file) => file.value(path, key),
            None => Ok(None),
        }
    }
}
