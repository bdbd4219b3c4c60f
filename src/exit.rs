//! Exit codes, and the one line that reports an error.

use std::io;
use std::process::ExitCode;

use anyhow::{Error, Result};
use ruvllm_store::StoreError;

use crate::config::{self, ConfigError, Setting};

/// The user pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

const FAILURE: u8 = 1;
const WRONG_USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

/// Prints the error, if any, and returns the exit code. `settings` are those that did not come from the command line.
pub fn code(outcome: Result<()>, settings: &[Setting]) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // The reader of our output has seen enough (`ruvllm list | head`).
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
    let message = message_of(&error);
    eprintln!("error: {message}");
    for setting in config::blame(settings, &message) {
        eprintln!("note: {} = {} is from {}", setting.key, setting.values.join(", "), setting.origin);
    }
    ExitCode::from(FAILURE)
}

/// Reports wrong settings, which count as wrong usage.
pub fn wrong_settings(error: &ConfigError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(WRONG_USAGE)
}

/// Joins an error and its causes. A cause that the text before it already quotes is left out.
fn message_of(error: &Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.ends_with(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot load: {0}")]
    struct Quoting(#[source] io::Error);

    #[test]
    fn a_cause_that_is_quoted_is_not_repeated() {
        let error = Error::new(Quoting(io::Error::other("unknown architecture"))).context("cannot run x.gguf");
        assert_eq!(message_of(&error), "cannot run x.gguf: cannot load: unknown architecture");
        let error = Error::new(io::Error::other("disk full")).context("cannot write");
        assert_eq!(message_of(&error), "cannot write: disk full");
    }
}
