//! Settings from a file and from environment variables, for every flag of every command.
//!
//! The command line itself is the list of settings: a flag `--max-tokens` of `ruvllm run` is the key `max_tokens`, in the file at
//! top level (for all commands that have such a flag) or in the table `[run]`, and the variables `RUVLLM_MAX_TOKENS` and
//! `RUVLLM_RUN_MAX_TOKENS`. What is more particular wins, a variable wins over the file, and a flag over both. No command
//! knows of it: values become defaults of its flags before they are parsed.

mod apply;
mod environment;
mod error;
mod file;
mod schema;
mod secret;
mod settings;
mod tree;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgMatches, Command, FromArgMatches};

pub use error::ConfigError;
pub use file::location;
pub use schema::{keys_of, runnable_commands};
pub use secret::redacted;
pub use settings::{Setting, Sources};

/// Commands that must work however wrong the settings are, and need none.
const WITHOUT_SETTINGS: [&str; 4] = ["config", "completions", "man", "help"];

/// What was parsed, and the settings that took part in it.
#[derive(Debug)]
pub struct Parsed<T> {
    pub cli: T,
    pub settings: Vec<Setting>,
}

/// Parses the command line over the settings. Wrong usage and requests for help end the program, as with clap alone.
pub fn parse<T: FromArgMatches>(command: Command) -> Result<Parsed<T>, ConfigError> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Whatever is wrong with the arguments is told later, when settings are known.
    let early = command.clone().ignore_errors(true).try_get_matches_from(&arguments);
    let early = early.unwrap_or_else(|help| help.exit());
    let path = subcommands(&early);
    let settings = match path.first() {
        Some(first) if !WITHOUT_SETTINGS.contains(&first.as_str()) => {
            Sources::find(&command, file_flag(&early))?.for_command(&command, &path)?
        }
        _ => Vec::new(),
    };
    let matches = apply::matches(command, &path, &settings, &arguments)?;
    let settings = settings.into_iter().filter(|setting| !is_overridden(&matches, setting)).collect();
    let cli = T::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    Ok(Parsed { cli, settings })
}

/// What `--config` says.
pub fn file_flag(matches: &ArgMatches) -> Option<PathBuf> {
    matches.try_get_one::<PathBuf>("config").ok().flatten().cloned()
}

/// Settings that an error is about, by its words: whoever reads it looks at the command line otherwise, in vain.
pub fn blame<'s>(settings: &'s [Setting], message: &str) -> Vec<&'s Setting> {
    settings.iter().filter(|setting| setting.is_named_in(message)).collect()
}

/// The names of the command and its subcommand: `keys`, `add`.
fn subcommands(matches: &ArgMatches) -> Vec<String> {
    let mut path = Vec::new();
    let mut matches = matches;
    while let Some((name, inner)) = matches.subcommand() {
        path.push(name.to_owned());
        matches = inner;
    }
    path
}

fn is_overridden(matches: &ArgMatches, setting: &Setting) -> bool {
    let mut matches = matches;
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    matches.value_source(&setting.argument) == Some(clap::parser::ValueSource::CommandLine)
}
