//! `ruvllm witness`: what became of requests.

mod export;
mod search;
mod show;
mod stats;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Search, summarise, verify and export the log of answered requests
///
/// `ruvllm serve` writes an entry for each request: who asked, which model answered with which settings, how long each part took,
/// how good the answer seems. What was said is not in it, unless the server runs with --memory-text.
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
