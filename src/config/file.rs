//! The file `config.toml`: finding it, reading it, and its values.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use clap::Command;
use ruvllm_store::{closest, default_home, require_private, require_unwritable};

use super::error::ConfigError;
use super::schema::{Key, keys_of};
use super::settings::{Origin, Setting};
use super::tree::{Entry, Table, Value};

const VARIABLE: &str = "RUVLLM_CONFIG";

/// Location of the file.
#[derive(Clone, Debug)]
pub struct Location {
    pub path: PathBuf,
    /// The user named it, so it must exist.
    is_named: bool,
}

/// `--config`, or `RUVLLM_CONFIG`, or `config.toml` in the home folder.
pub fn location(flag: Option<PathBuf>) -> Result<Location, ConfigError> {
    let variable = || env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    match flag.or_else(variable) {
        Some(path) => Ok(Location { path, is_named: true }),
        None => Ok(Location { path: default_home()?.join("config.toml"), is_named: false }),
    }
}

#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    root: Table,
}

impl ConfigFile {
    /// `None` if the user named no file and the default does not exist.
    pub(super) fn read(location: &Location) -> Result<Option<Self>, ConfigError> {
        let path = location.path.clone();
        // Settings can run commands and open the server, so only the user may write them.
        if location.is_named {
            require_unwritable(&path)?
        } else {
            require_private(&path)?
        };
        match fs::read_to_string(&path) {
            Ok(text) => match Table::parse(&text) {
                Ok(root) => Ok(Some(Self { path, root })),
                Err((line, why)) => Err(ConfigError::Syntax { path, line, why }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound && !location.is_named => Ok(None),
            Err(error) => Err(ConfigError::Read { path, error }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every key must be a flag of some command, or the table of one.
    pub(super) fn check_keys(&self, root: &Command) -> Result<(), ConfigError> {
        self.check_table(&self.root, root, &mut Vec::new())
    }

    /// `place` holds the names of the enclosing tables.
    fn check_table(&self, table: &Table, command: &Command, place: &mut Vec<String>) -> Result<(), ConfigError> {
        let known = keys_below(command);
        for entry in &table.entries {
            let inner = command.get_subcommands().find(|inner| inner.get_name() == entry.key);
            if let (Value::Table(table), Some(inner)) = (&entry.value, inner) {
                place.push(entry.key.clone());
                self.check_table(table, inner, place)?;
                place.pop();
            } else if !known.contains(&entry.key) {
                return Err(self.unknown_key(entry, command, &known, place));
            }
        }
        Ok(())
    }

    fn unknown_key(&self, entry: &Entry, command: &Command, known: &[String], place: &[String]) -> ConfigError {
        let commands = command.get_subcommands().map(Command::get_name);
        let known: Vec<&str> = known.iter().map(String::as_str).chain(commands).collect();
        ConfigError::UnknownKey {
            path: self.path.clone(),
            line: entry.line,
            place: if place.is_empty() { "any command".to_owned() } else { format!("[{}]", place.join(".")) },
            key: entry.key.clone(),
            suggestion: closest(&entry.key.replace('-', "_"), &known).map(str::to_owned),
        }
    }

    /// Returns the settings for a command: its own table overrides the enclosing ones.
    pub(super) fn value(&self, path: &[String], key: &Key) -> Result<Option<Setting>, ConfigError> {
        let mut found = self.root.get(&key.name);
        let mut table = Some(&self.root);
        for name in path {
            table = table.and_then(|table| table.table(name));
            found = table.and_then(|table| table.get(&key.name)).or(found);
        }
        // A table of that name belongs to a command, as `[config]` might.
        let Some(entry) = found.filter(|entry| !matches!(entry.value, Value::Table(_))) else { return Ok(None) };
        let origin = Origin::File { path: self.path.clone(), line: entry.line };
        let values = values(key, &entry.value, &origin)?;
        Ok(Some(Setting { key: key.name.clone(), argument: key.flag.get_id().to_string(), values, origin }))
    }
}

/// Returns the keys of a command and of all its subcommands.
fn keys_below(command: &Command) -> Vec<String> {
    let own = keys_of(command).into_iter().map(|key| key.name);
    own.chain(command.get_subcommands().flat_map(keys_below)).collect()
}

fn values(key: &Key, value: &Value, origin: &Origin) -> Result<Vec<String>, ConfigError> {
    let wrong = |expected| ConfigError::WrongType {
        origin: origin.clone(),
        key: key.name.clone(),
        expected,
        got: value.kind().to_owned(),
    };
    match value {
        Value::Switch(is_on) if key.is_switch() => Ok(vec![is_on.to_string()]),
        _ if key.is_switch() => Err(wrong("true or false")),
        Value::Text(text) => Ok(vec![text.clone()]),
        Value::List(list) if key.takes_many() => {
            list.iter().cloned().collect::<Option<_>>().ok_or_else(|| wrong("a list of texts or numbers"))
        }
        _ if key.takes_many() => Err(wrong("a text, a number, or a list of them")),
        _ => Err(wrong("a text or a number")),
    }
}
