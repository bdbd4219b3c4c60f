//! `ruvllm push`: shares a model with other machines.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use crate::loading::store;
use crate::output;
use crate::output::progress::{PullProgress, interrupt_flag};

/// Copy a model to a folder that other machines can use
///
/// They name the folder in RUVLLM_MODELS, or copy the model from it with `ruvllm pull FILE`. The files are verified
/// before and after copying. Uploading to the Hugging Face hub is not supported; use its own program.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  ruvllm push smollm2 /mnt/shared/ruvllm\n  RUVLLM_MODELS=/mnt/shared/ruvllm ruvllm run smollm2"
)]
pub struct Push {
    /// Name of the model, as shown by `ruvllm list`
    model: String,
    /// Target folder; created if necessary
    folder: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Push {
    pub fn execute(self) -> Result<()> {
        if self.folder.to_string_lossy().starts_with("hf:") {
            bail!("uploading to the hub is not supported: use its own program, `hf upload`, or name a folder");
        }
        let file = store()?.push(&self.model, &self.folder, &mut PullProgress::new(interrupt_flag()))?;
        if self.json {
            let bytes = file.manifest.as_ref().map(|manifest| manifest.bytes());
            return output::json(&json!({ "name": file.name, "path": file.path, "bytes": bytes }));
        }
        output::line(&format!("{} is in {}", file.name, self.folder.display()))
    }
}
