//! `ruvllm completions`: scripts that let a shell complete commands and flags.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{Cli, output};

/// Print a script that completes commands and flags in your shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm completions bash > ~/.local/share/bash-completion/completions/ruvllm\n  \
                        ruvllm completions zsh > \"${fpath[1]}/_ruvllm\"\n  \
                        ruvllm completions fish > ~/.config/fish/completions/ruvllm.fish")]
pub struct Completions {
    shell: Shell,
}

impl Completions {
    pub fn execute(self) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "ruvllm", &mut script);
        output::piece(&String::from_utf8(script)?)
    }
}
