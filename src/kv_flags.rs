//! How the keys and values of a model are kept.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_memory::KeySource;
use ruvllm_runtime::{DiskStore, EngineBuilder, KvChoice, PageKey};
use ruvllm_store::default_home;

use crate::memory_flags::KEY_VARIABLE;

/// The size of a disk tier when nothing else is said.
const DISK_BYTES_DEFAULT: u64 = 8 << 30;
/// What keys are derived for: another purpose gives another key.
const KEY_PURPOSE: &str = "ruvllm kv pages on disk 1";

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Keys and values")]
pub struct KvFlags {
    /// Their format: f16 (exact), q8 (half the memory), tiers by distance from the end of the text, such as
    /// f16:256,q8:2048,q8/q4 (the last 256 tokens in half floats, 8 bits up to 2,048 back, then 8-bit keys and 4-bit
    /// values), or auto: those tiers, with the last as small as the model bears (measured when it is first loaded, and
    /// shown by `ruvllm show`)
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub kv: KvChoice,
    /// Memory for them at most, of running and of cached texts, such as 512M or 2G [default: what all texts can fill]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub kv_memory: Option<u64>,
    /// A folder where they go as they are computed, encrypted: they are found again when they had to leave memory, and after
    /// a restart
    #[arg(long, value_name = "FOLDER")]
    pub kv_disk: Option<PathBuf>,
    /// The size of that folder at most, whoever writes to it [default: 8G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "kv_disk")]
    pub kv_disk_size: Option<u64>,
    /// A command that prints the key of that folder, 64 hexadecimal digits. Otherwise it is derived from $RUVLLM_MEMORY_KEY, or
    /// kept in kv.key in ~/.ruvllm or $RUVLLM_HOME
    #[arg(long, value_name = "COMMAND", requires = "kv_disk")]
    pub kv_key_command: Option<String>,
    /// Opened once for all models of a process, which share its size.
    #[arg(skip)]
    opened: Arc<Mutex<Option<DiskStore>>>,
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
        let key = self.key_source()?.key().context("the key of --kv-disk cannot be had")?;
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

/// A number of bytes, with K, M, G or T for powers of 1,024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "give a whole number and a unit, such as 512M".to_owned())?;
    if number == 0 {
        return Err("it must be more than nothing, such as 512M".to_owned());
    }
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        unit => return Err(format!("{unit:?} is no unit; use K, M, G or T")),
    };
    number.checked_shl(shift).filter(|bytes| bytes >> shift == number).ok_or_else(|| "that is too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("2gib"), Ok(2 << 30));
        assert_eq!(parse_size("123"), Ok(123));
        for wrong in ["", "M", "banana", "0", "0G", "12X", "-1G", "1.5G", "99999999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
