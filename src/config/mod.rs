//! Settings from a file and from environment variables, for every flag of every command.
//!
//! The command line defines the settings: the flag `--max-tokens` of `ruvllm run` is the key `max_tokens`, in the file
//! at the top level (for all commands with such a flag) or in the table `[run]`, and the variables `RUVLLM_MAX_TOKENS`
//! and `RUVLLM_RUN_MAX_TOKENS`. The more specific one wins, a variable overrides the file, and a flag overrides both.
//! Commands do not know about settings: values become defaults of their flags before these are parsed.

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

/// Commands that must work even if the settings are wrong, and need none.
const WITHOUT_SETTINGS: [&str; 4] = ["config", "completions", "man", "help"];

/// The parsed command line, and the settings that it uses.
#[derive(Debug)]
pub struct Parsed<T> {
    pub cli: T,
    pub settings: Vec<Setting>,
    pub values: FlagValues,
}

/// The values of all flags of the command that runs, as text.
#[derive(Debug)]
pub struct FlagValues(ArgMatches);

impl FlagValues {
    /// Returns the value of a flag by its name in clap: what the command line says, or a setting, or its default.
    pub fn get(&self, argument: &str) -> Option<OsString> {
        self.0.try_contains_id(argument).ok().filter(|has_value| *has_value)?;
        self.0.get_raw(argument)?.next().map(OsString::from)
    }
}

/// Parses the command line on top of the settings. Wrong usage and requests for help exit, as with clap alone.
pub fn parse<T: FromArgMatches>(command: Command) -> Result<Parsed<T>, ConfigError> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Wrong arguments are reported later, when settings are known.
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
    Ok(Parsed { cli, settings, values: FlagValues(innermost(&matches).clone()) })
}

/// Returns the value of `--config`.
pub fn file_flag(matches: &ArgMatches) -> Option<PathBuf> {
    matches.try_get_one::<PathBuf>("config").ok().flatten().cloned()
}

/// Returns the settings that an error message mentions: without them, users would look for the mistake on the command
/// line.
pub fn blame<'s>(settings: &'s [Setting], message: &str) -> Vec<&'s Setting> {
    settings.iter().filter(|setting| setting.is_named_in(message)).collect()
}

/// Returns the names of the command and its subcommand: `keys`, `add`.
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
    innermost(matches).value_source(&setting.argument) == Some(clap::parser::ValueSource::CommandLine)
}

/// Returns what was parsed for the command that runs.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}
