//! `ruvllm learn`: what is kept to learn from.

mod export;
mod forget;
mod status;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Show, export and forget what is kept to learn from
///
/// Nothing is kept unless somebody opts in: `ruvllm serve --learn` for local users and all keys, `ruvllm keys add NAME
/// --learn` for one, `ruvllm run MODEL --learn` for a chat. Then the texts and token ids of prompts and answers are kept,
/// with the feedback on them.
#[derive(Debug, Args)]
pub struct Learn {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Status(status::Status),
    Export(export::Export),
    Forget(forget::ForgetCommand),
}

impl Learn {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::Status(command) => command.execute(),
            What::Export(command) => command.execute(),
            What::Forget(command) => command.execute(),
        }
    }
}
