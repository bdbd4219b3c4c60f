//! Where the memory is stored, for every command that uses it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_memory::{KeySource, Memory, MemoryOptions, Place};
use ruvllm_runtime::LearnedFiles;
use ruvllm_store::{default_home, require_private};

/// Environment variable that may hold the key.
pub const KEY_VARIABLE: &str = "RUVLLM_MEMORY_KEY";

/// File that holds the key otherwise.
const KEY_FILE: &str = "memory.key";

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryLocationFlags {
    /// Folder of the memory [default: memory in ~/.ruvllm or $RUVLLM_HOME]
    #[arg(long, value_name = "FOLDER")]
    pub memory_folder: Option<PathBuf>,
    /// Store the memory in a PostgreSQL database with pgvector instead, which several machines can share:
    /// postgres://user:password@host/database
    #[arg(long, value_name = "URL", conflicts_with = "memory_folder")]
    pub memory_postgres: Option<String>,
    /// Command that prints the memory's key, such as one that asks the system's keyring. By default the key is in
    /// $RUVLLM_MEMORY_KEY, or in a file beside the memory
    #[arg(long, value_name = "COMMAND")]
    pub memory_key_command: Option<String>,
}

impl MemoryLocationFlags {
    pub fn folder(&self) -> Result<PathBuf> {
        match &self.memory_folder {
            Some(folder) => Ok(folder.clone()),
            None => Ok(default_home()?.join("memory")),
        }
    }

    /// Returns the adapters that were learned. A server database is shared by machines, and each has its own files.
    pub fn learned_files(&self) -> Result<LearnedFiles> {
        Ok(LearnedFiles::in_folder(self.folder()?.join("learned")))
    }

    pub fn key(&self) -> Option<KeySource> {
        match &self.memory_key_command {
            Some(command) => Some(KeySource::Command(command.clone())),
            None => std::env::var_os(KEY_VARIABLE).map(|_| KeySource::Environment(KEY_VARIABLE.to_owned())),
        }
    }

    pub fn options(&self) -> Result<MemoryOptions> {
        let place = match &self.memory_postgres {
            Some(url) => Place::Postgres { url: url.clone() },
            None => {
                let (folder, key) = (self.folder()?, self.key());
                if key.is_none() {
                    // A key file that others could have written holds a key that they know.
                    require_private(&folder.join(KEY_FILE))?;
                }
                Place::Folder { folder, key }
            }
        };
        Ok(MemoryOptions { place, ..MemoryOptions::in_folder("") })
    }

    /// Opens an existing memory: commands that only read must not create one.
    pub fn open(&self) -> Result<Memory> {
        match self.open_if_exists()? {
            Some(memory) => Ok(memory),
            None => bail!(
                "there is no memory in {} yet: `ruvllm serve` and `ruvllm run --session NAME` create one",
                self.folder()?.display()
            ),
        }
    }

    pub fn open_if_exists(&self) -> Result<Option<Memory>> {
        let options = self.options()?;
        match &options.place {
            Place::Folder { folder, .. } if !Memory::is_in(folder) => Ok(None),
            _ => Ok(Some(Memory::open(options)?)),
        }
    }
}
