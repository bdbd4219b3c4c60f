//! `ruvllm man`: manual pages.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_mangen::Man as Page;

use crate::{Cli, output};

/// Print the manual page, or write those of all commands to a folder
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm man | man -l -\n  ruvllm man --folder ~/.local/share/man/man1")]
pub struct Man {
    /// Folder for ruvllm.1, ruvllm-run.1 and so on; created if necessary
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Man {
    pub fn execute(self) -> Result<()> {
        let Some(folder) = self.folder else {
            let mut page = Vec::new();
            Page::new(Cli::command()).render(&mut page)?;
            return output::piece(&String::from_utf8(page)?);
        };
        let write = || {
            fs::create_dir_all(&folder)?;
            clap_mangen::generate_to(Cli::command(), &folder)
        };
        write().with_context(|| format!("cannot write manual pages to {}", folder.display()))
    }
}
