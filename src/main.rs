//! The `ruvllm` command line. Parses arguments and calls one file of `commands/` for each command.

mod commands;
mod exit;
mod kv_flags;
mod model_flags;
mod output;
mod progress;
mod sampling_flags;
mod speculation_flag;
mod warnings;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs open-weight language models on your own machine.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "First steps:\n  ruvllm run smollm2 \"Why is the sky blue?\"   fetches the default model (98 MB) and answers\n  \
                  ruvllm run smollm2                           chats\n  \
                  ruvllm doctor                                shows what this machine can do\n\n\
                  Models are kept in ~/.ruvllm/models, or in $RUVLLM_HOME/models.\n\
                  Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(commands::run::Run),
    Pull(commands::pull::Pull),
    List(commands::list::List),
    Show(commands::show::Show),
    Rm(commands::rm::Rm),
    Bench(commands::bench::Bench),
    Perplexity(commands::perplexity::Perplexity),
    Tokenize(commands::tokenize::Tokenize),
    Quantize(commands::quantize::Quantize),
    Doctor(commands::doctor::Doctor),
}

fn main() -> ExitCode {
    warnings::show();
    let outcome = match Cli::parse().command {
        Command::Run(command) => command.execute(),
        Command::Pull(command) => command.execute(),
        Command::List(command) => command.execute(),
        Command::Show(command) => command.execute(),
        Command::Rm(command) => command.execute(),
        Command::Bench(command) => command.execute(),
        Command::Perplexity(command) => command.execute(),
        Command::Tokenize(command) => command.execute(),
        Command::Quantize(command) => command.execute(),
        Command::Doctor(command) => command.execute(),
    };
    exit::code(outcome)
}
