//! `ruvllm adapters pull`: brings an adapter into the store.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use ruvllm_runtime::AdapterFile;

use super::show;
use crate::loading::store;
use crate::output;
use crate::output::progress::{PullProgress, interrupt_flag};

/// Fetch an adapter, or copy one from this machine, into the store
///
/// What cannot be used is refused by name: DoRA, embeddings, whole modules and other kinds of PEFT than LoRA. Whether an adapter
/// fits a model is checked when it is used with one. Pulling a name again replaces it; a running server goes on with what it has
/// loaded until it is told otherwise.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm adapters pull ./my-lora --name smollm2:legal     for one model\n  \
                        ruvllm adapters pull ./my-lora                           for any model that it fits\n  \
                        ruvllm adapters pull hf:OWNER/REPO@REVISION")]
pub struct Pull {
    /// A PEFT folder (adapter_config.json and adapter_model.safetensors), a GGUF file of llama.cpp's convert_lora_to_gguf, or
    /// hf:OWNER/REPO[/FILE][@REVISION]
    #[arg(value_name = "ADAPTER")]
    adapter: String,
    /// Store it under this name: NAME, or MODEL:NAME for an adapter of one model, which servers then offer by themselves
    /// [default: the name of the folder, file or repository]
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Pull {
    pub fn execute(self) -> Result<()> {
        let check = |path: &Path| AdapterFile::open(path).map(drop).map_err(|error| error.to_string());
        let mut progress = PullProgress::new(interrupt_flag());
        let adapter = store()?.pull_adapter(&self.adapter, self.name.as_deref(), &check, &mut progress)?;
        if self.json {
            return output::json(&show::to_json(&adapter, &AdapterFile::open(&adapter.path)?));
        }
        output::line(&format!("{} is ready: {}", adapter.name, adapter.path.display()))
    }
}
