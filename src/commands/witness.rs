//! `ruvllm witness`: the log of answered requests.

mod export;
mod search;
mod show;
mod stats;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Search, summarise, verify and export the log of answered requests
///
/// `ruvllm serve` writes an entry for each request: the tenant, the model, its settings, the time of each phase, and an
/// estimate of the answer's quality. Prompts and answers themselves are stored only if the server runs with
/// --memory-text.
#[derive(Debug, Args)]
pub struct Witness {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Search(search::Search),
    Show(show::Show),
    Stats(stats::Stats),
    Verify(verify::Verify),
    Export(export::Export),
}

impl Witness {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::Search(command) => command.execute(),
            What::Show(command) => command.execute(),
            What::Stats(command) => command.execute(),
            What::Verify(command) => command.execute(),
            What::Export(command) => command.execute(),
        }
    }
}
