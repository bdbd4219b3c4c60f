//! How the program ends: one clear line for an error, and an exit code.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use ruvllm_store::StoreError;

use crate::config::{self, ConfigError, Setting};

/// The user pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

const FAILURE: u8 = 1;
const WRONG_USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

/// Prints an error, if there is one, and gives the exit code. `settings` are those that are not from the command line.
pub fn code(outcome: Result<()>, settings: &[Setting]) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // Whoever read our output has seen enough (`ruvllm list | head`).
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let cancelled = matches!(error.downcast_ref::<StoreError>(), Some(StoreError::Cancelled));
    if cancelled || error.is::<Interrupted>() {
        eprintln!("interrupted");
        return ExitCode::from(INTERRUPTED);
    }
    if let Some(error) = error.downcast_ref::<ConfigError>() {
        return wrong_settings(error);
    }
    let message = format!("{error:#}");
    eprintln!("error: {message}");
    for setting in config::blame(settings, &message) {
        eprintln!("note: {} = {} is from {}", setting.key, setting.values.join(", "), setting.origin);
    }
    ExitCode::from(FAILURE)
}

/// Settings are part of how the program is used.
pub fn wrong_settings(error: &ConfigError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(WRONG_USAGE)
}
