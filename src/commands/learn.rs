//! `ruvllm learn`: what is kept to learn from, what was learned, and who is served with it.

mod case;
mod diff;
mod evaluate;
mod export;
mod forget;
mod history;
mod import;
mod now;
mod publish;
mod router;
mod serving;
mod shared;
mod status;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Learn from feedback; show, export and forget what is kept to learn from
///
/// Nothing is kept unless somebody opts in: `ruvllm serve --learn` for local users and all keys, `ruvllm keys add NAME
/// --learn` for one, `ruvllm run MODEL --learn` for a chat. Then the texts and token ids of prompts and answers are kept,
/// with the feedback on them, and answers are given with what was learned from it.
///
/// Requests with the model "auto" are answered by the model that did best for similar ones of the same tenant, as far as
/// that can be told from feedback and time (`ruvllm learn evaluate`). `ruvllm learn router` trains a network for that; in
/// the other commands its model is called auto.
#[derive(Debug, Args)]
pub struct Learn {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Status(status::Status),
    Now(Box<now::Now>),
    Router(router::Router),
    Evaluate(evaluate::Evaluate),
    History(history::History),
    Diff(diff::Diff),
    Promote(serving::Promote),
    Rollback(serving::Rollback),
    Reset(serving::Reset),
    Publish(publish::Publish),
    Import(Box<import::Import>),
    Export(export::Export),
    Forget(forget::ForgetCommand),
}

impl Learn {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::Status(command) => command.execute(),
            What::Now(command) => command.execute(),
            What::Router(command) => command.execute(),
            What::Evaluate(command) => command.execute(),
            What::History(command) => command.execute(),
            What::Diff(command) => command.execute(),
            What::Promote(command) => command.execute(),
            What::Rollback(command) => command.execute(),
            What::Reset(command) => command.execute(),
            What::Publish(command) => command.execute(),
            What::Import(command) => command.execute(),
            What::Export(command) => command.execute(),
            What::Forget(command) => command.execute(),
        }
    }
}
