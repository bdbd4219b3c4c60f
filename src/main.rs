//! The `ruvllm` command line. Parses arguments and calls one file of `commands/` for each command.

mod client;
mod commands;
mod config;
mod exit;
mod flags;
mod learning;
mod loading;
mod output;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use config::Parsed;

/// Runs open-weight language models on your own machine.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "First steps:\n  ruvllm run smollm2 \"Why is the sky blue?\"   fetches the default model (98 MB) and answers\n  ruvllm run smollm2                           starts a chat\n  ruvllm doctor                                shows what this machine can do\n\nModels are stored in ~/.ruvllm/models, or in $RUVLLM_HOME/models. Flags can be set in
/.ruvllm/config.toml and by environment variables: see ruvllm config --help.\nExit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted."
)]
struct Cli {
    /// Read settings from this file [default: config.toml in ~/.ruvllm or $RUVLLM_HOME]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(commands::run::Run),
    Serve(Box<commands::serve::Serve>),
    Launch(commands::launch::Launch),
    Ps(commands::ps::Ps),
    Cache(commands::cache::Cache),
    Keys(commands::keys::Keys),
    Witness(commands::witness::Witness),
    Sessions(commands::sessions::Sessions),
    Feedback(commands::feedback::GiveFeedback),
    Learn(commands::learn::Learn),
    Policies(commands::policies::Policies),
    Memory(commands::memory::Memory),
    Pull(commands::pull::Pull),
    Push(commands::push::Push),
    List(commands::list::List),
    Adapters(commands::adapters::Adapters),
    Kernels(commands::kernels::Kernels),
    Show(commands::show::Show),
    Rm(commands::rm::Rm),
    Bench(commands::bench::Bench),
    Perplexity(commands::perplexity::Perplexity),
    Embed(commands::embed::Embed),
    Rerank(commands::rerank::Rerank),
    Tokenize(commands::tokenize::Tokenize),
    Quantize(commands::quantize::Quantize),
    Doctor(commands::doctor::Doctor),
    Config(commands::config::Config),
    Completions(commands::completions::Completions),
    Man(commands::man::Man),
}

fn main() -> ExitCode {
    let Parsed { cli, settings, values } = match config::parse::<Cli>(Cli::command()) {
        Ok(parsed) => parsed,
        Err(error) => return exit::wrong_settings(&error),
    };
    // The server writes a log instead.
    if !matches!(cli.command, Command::Serve(_)) {
        output::warnings::show();
    }
    let outcome = match cli.command {
        Command::Run(command) => command.execute(),
        Command::Serve(command) => command.execute(&values),
        Command::Launch(command) => command.execute(),
        Command::Ps(command) => command.execute(),
        Command::Cache(command) => command.execute(),
        Command::Keys(command) => command.execute(),
        Command::Witness(command) => command.execute(),
        Command::Sessions(command) => command.execute(),
        Command::Feedback(command) => command.execute(),
        Command::Learn(command) => command.execute(),
        Command::Policies(command) => command.execute(),
        Command::Memory(command) => command.execute(),
        Command::Pull(command) => command.execute(),
        Command::List(command) => command.execute(),
        Command::Adapters(command) => command.execute(),
        Command::Kernels(command) => command.execute(),
        Command::Show(command) => command.execute(),
        Command::Push(command) => command.execute(),
        Command::Rm(command) => command.execute(),
        Command::Bench(command) => command.execute(),
        Command::Perplexity(command) => command.execute(),
        Command::Embed(command) => command.execute(),
        Command::Rerank(command) => command.execute(),
        Command::Tokenize(command) => command.execute(),
        Command::Quantize(command) => command.execute(),
        Command::Doctor(command) => command.execute(),
        Command::Config(command) => command.execute(cli.config),
        Command::Completions(command) => command.execute(),
        Command::Man(command) => command.execute(),
    };
    exit::code(outcome, &settings)
}
