//! How the KV cache of a model is stored.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_memory::KeySource;
use ruvllm_runtime::{DiskStore, EngineBuilder, KvChoice, PageKey};
use ruvllm_store::default_home;

use super::memory::KEY_VARIABLE;
use super::size::parse_size;

/// Size of the disk tier without `--kv-disk-size`.
const DISK_BYTES_DEFAULT: u64 = 8 << 30;
/// What the key of the disk tier is derived for: another purpose gives another key.
const KEY_PURPOSE: &str = "ruvllm kv pages on disk 1";

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "KV cache")]
pub struct KvFlags {
    /// Format of keys and values: f16 (exact), q8 (half the memory), or tiers by distance from the end of the text, such
    /// as f16:256,q8:2048,q8/q4 (the last 256 tokens as f16, 8 bits up to 2,048 tokens back, then 8-bit keys and 4-bit
    /// values). auto uses these tiers with the smallest last one that the model tolerates, which is measured on the first
    /// load and shown by `ruvllm show`
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub kv: KvChoice,
    /// Maximum memory for the KV cache, running and cached, such as 512M or 2G [default: enough for all sequences]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub kv_memory: Option<u64>,
    /// Folder of the disk tier. Pages are written there encrypted as they are computed, and are found again after they
    /// were evicted from memory and after a restart
    #[arg(long, value_name = "FOLDER")]
    pub kv_disk: Option<PathBuf>,
    /// Maximum size of that folder, for all processes that use it [default: 8G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "kv_disk")]
    pub kv_disk_size: Option<u64>,
    /// Command that prints the folder's key, 64 hexadecimal digits. By default the key is derived from $RUVLLM_MEMORY_KEY,
    /// or stored in kv.key in ~/.ruvllm or $RUVLLM_HOME
    #[arg(long, value_name = "COMMAND", requires = "kv_disk")]
    pub kv_key_command: Option<String>,
    /// Opened once for all models of the process, which share its size.
    #[arg(skip)]
    opened: Arc<Mutex<Option<DiskStore>>>,
}

impl Default for KvFlags {
    fn default() -> Self {
        Self {
            kv: KvChoice::Auto,
            kv_memory: None,
            kv_disk: None,
            kv_disk_size: None,
            kv_key_command: None,
            opened: Arc::default(),
        }
    }
}

impl KvFlags {
    pub fn apply(&self, builder: EngineBuilder) -> Result<EngineBuilder> {
        let disk = self.kv_disk.as_deref().map(|folder| self.disk(folder)).transpose()?;
        let memory = self.kv_memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(builder.kv(self.kv).kv_budget_bytes(memory).disk(disk))
    }

    fn disk(&self, folder: &Path) -> Result<DiskStore> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(disk) = &*opened {
            return Ok(disk.clone());
        }
        let key = self.key_source()?.key().context("cannot read the key of --kv-disk")?;
        let size = self.kv_disk_size.unwrap_or(DISK_BYTES_DEFAULT);
        let disk = DiskStore::open(folder, size, PageKey::new(&key.derive(KEY_PURPOSE)))
            .with_context(|| format!("{} cannot be used for cached KV pages", folder.display()))
            .context("--kv-disk needs a folder that can be written to")?;
        Ok(opened.insert(disk).clone())
    }

    fn key_source(&self) -> Result<KeySource> {
        Ok(match &self.kv_key_command {
            Some(command) => KeySource::Command(command.clone()),
            None if std::env::var_os(KEY_VARIABLE).is_some() => KeySource::Environment(KEY_VARIABLE.to_owned()),
            None => KeySource::File(default_home()?.join("kv.key")),
        })
    }
}
