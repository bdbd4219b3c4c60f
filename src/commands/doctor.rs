//! `ruvllm doctor`: the capabilities of this machine, and whether everything is in place.

use std::process::{Command, Stdio};

use anyhow::Result;
use clap::Args;
use ruvllm_kernels::KernelSet;
use ruvllm_runtime::hardware::{self, Hardware};
use ruvllm_store::{Listed, default_home};
use serde_json::json;

use crate::loading::store;
use crate::output;

/// What is encrypted on disk and what is not.
const ENCRYPTED: [&str; 2] = ["the memory's file (SQLCipher, AES-256)", "KV pages of --kv-disk (AES-256-GCM)"];
const NOT_ENCRYPTED: [&str; 3] = ["model files", "the log", "data of a PostgreSQL server of --memory-postgres"];

/// Show what this machine can do and what is missing
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub fn execute(self) -> Result<()> {
        let hardware = Hardware::detect();
        let chosen = hardware::chosen_kernels()?;
        let home = default_home()?;
        let listed = store()?.list()?;
        let usable = listed.iter().filter(|item| matches!(item, Listed::Model(_))).count();
        let pip = has_pip();
        let kernels: Vec<&str> = hardware.kernels.iter().copied().map(KernelSet::name).collect();
        if self.json {
            return output::json(&json!({
                "cpu": hardware.cpu,
                "features": hardware.features,
                "cores": hardware.cores,
                "memory_bytes": hardware.memory_bytes,
                "memory_available_bytes": hardware.memory_available_bytes,
                "kernels": { "possible": kernels, "chosen": chosen.name() },
                "threads": hardware.cores,
                "home": home,
                "models": usable,
                "damaged_models": listed.len() - usable,
                "pip": pip,
                "encrypted": ENCRYPTED,
                "not_encrypted": NOT_ENCRYPTED,
            }));
        }
        let memory = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), output::bytes);
        let mut rows = vec![
            ("processor", hardware.cpu.clone().unwrap_or_else(|| "unknown".to_owned())),
            ("features", hardware.features.join(" ")),
            ("cores", format!("{} (one thread each)", hardware.cores)),
            ("memory", format!("{}, {} free", memory(hardware.memory_bytes), memory(hardware.memory_available_bytes))),
            ("kernels", format!("{} (available: {}; RUVLLM_KERNELS selects one)", chosen.name(), kernels.join(", "))),
            ("home", home.display().to_string()),
            ("models", format!("{usable} usable")),
            ("encrypted", ENCRYPTED.join("; ")),
            ("not encrypted", NOT_ENCRYPTED.join("; ")),
            (
                "pip",
                if pip { "found" } else { "not found: models can only come from the hub or from files" }.to_owned(),
            ),
        ];
        if usable < listed.len() {
            rows.push(("damaged", format!("{}: see ruvllm list", listed.len() - usable)));
        }
        let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
        output::table(&rows)
    }
}

/// Whether Python packages can be fetched.
fn has_pip() -> bool {
    let works = |command: &str, arguments: &[&str]| {
        // Not run in the caller's folder, where Python and relative folders in PATH could find other programs.
        let mut run = Command::new(command);
        let run = run.args(arguments).current_dir("/").stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    works("python3", &["-I", "-m", "pip", "--version"]) || works("pip3", &["--version"]) || works("pip", &["--version"])
}
