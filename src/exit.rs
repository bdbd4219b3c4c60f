//! How the program ends: one clear line for an error, and an exit code.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use ruvllm_store::StoreError;

/// The user pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

const FAILURE: u8 = 1;
const INTERRUPTED: u8 = 130;

/// Prints an error, if there is one, and gives the exit code.
pub fn code(outcome: Result<()>) -> ExitCode {
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
    eprintln!("error: {error:#}");
    ExitCode::from(FAILURE)
}
