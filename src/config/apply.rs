//! Applies settings as defaults of flags.
//!
//! A default does not conflict with other flags, so `system` in the file does not forbid `--raw`. But clap does not see
//! that a default satisfies the requirement of another flag; the requirement is then removed.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, ArgMatches, Command, value_parser};

use super::error::ConfigError;
use super::schema::{Key, keys_of};
use super::secret::redacted;
use super::settings::Setting;

/// Parses the arguments with settings as defaults; exits as clap does if they are wrong.
pub(super) fn matches(
    root: Command,
    path: &[String],
    settings: &[Setting],
    arguments: &[OsString],
) -> Result<ArgMatches, ConfigError> {
    if settings.is_empty() {
        return Ok(root.get_matches_from(arguments));
    }
    let root = within(root, path, &|command| with_defaults(command, settings));
    match root.clone().try_get_matches_from(arguments) {
        Ok(matches) => Ok(matches),
        Err(error) if needs_only(&error, settings) => {
            Ok(within(root, path, &without_needs).get_matches_from(arguments))
        }
        Err(error) => error.exit(),
    }
}

/// Changes the command at a path.
fn within(root: Command, path: &[String], change: &dyn Fn(Command) -> Command) -> Command {
    match path.split_first() {
        None => change(root),
        Some((name, rest)) => root.mut_subcommand(name, |command| within(command, rest, change)),
    }
}

fn with_defaults(command: Command, settings: &[Setting]) -> Command {
    let keys = keys_of(&command);
    settings.iter().fold(command, |command, setting| {
        let is_switch = keys.iter().any(|key| key.name == setting.key && key.is_switch());
        command.mut_arg(&setting.argument, |flag| {
            let values = setting.values.clone();
            if !is_switch {
                return flag.default_values(values);
            }
            // `--flag=false` turns off what a setting turns on.
            let flag = flag.action(ArgAction::Set).num_args(0..=1).require_equals(true);
            flag.value_parser(value_parser!(bool)).default_missing_value("true").default_values(values)
        })
    })
}

fn without_needs(command: Command) -> Command {
    command.mut_args(|flag| flag.requires(Resettable::Reset))
}

/// Whether settings provide everything that is missing.
fn needs_only(error: &clap::Error, settings: &[Setting]) -> bool {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return false };
    let is_set = |usage: &String| {
        let flag = usage.split_whitespace().next().unwrap_or_default();
        let key = flag.trim_start_matches('-').replace('-', "_");
        flag.starts_with("--") && settings.iter().any(|setting| setting.key == key)
    };
    error.kind() == ErrorKind::MissingRequiredArgument && missing.iter().all(is_set)
}

/// Lets the flag itself check the values, and reports their origin if it refuses them.
pub(super) fn check(command: &Command, key: &Key, setting: &Setting) -> Result<(), ConfigError> {
    if key.is_switch() {
        return Ok(());
    }
    let alone = command.clone().no_binary_name(true).mut_args(|flag| flag.required(false).requires(Resettable::Reset));
    let arguments = setting.values.iter().map(|value| format!("--{}={value}", key.flag.get_long().unwrap_or_default()));
    let Err(error) = alone.try_get_matches_from(arguments) else { return Ok(()) };
    let is_about_values = matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::NoEquals | ErrorKind::WrongNumberOfValues
    );
    if !is_about_values {
        return Ok(());
    }
    Err(ConfigError::WrongValue {
        origin: setting.origin.clone(),
        key: key.name.clone(),
        value: redacted(&setting.values.join(", ")),
        why: why(&error),
    })
}

/// Returns the reason without the flag, which the user did not write.
fn why(error: &clap::Error) -> String {
    if let Some(ContextValue::Strings(possible)) = error.get(ContextKind::ValidValue) {
        return format!("must be one of {}", possible.join(", "));
    }
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.kind().to_string(),
    }
}
