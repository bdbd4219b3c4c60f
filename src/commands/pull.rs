//! `ruvllm pull`: fetches a model into the store.

use anyhow::Result;
use clap::Args;
use ruvllm_store::Manifest;
use serde_json::json;

use crate::loading::store;
use crate::output;
use crate::output::progress::{PullProgress, interrupt_flag};

/// Fetch a model, or repair a damaged one
///
/// An interrupted pull resumes where it stopped. Sources are tried in order; each that fails says why.
#[derive(Debug, Args)]
pub struct Pull {
    /// Name from the catalogue (see `ruvllm list`), hf:OWNER/REPO[/FILE.gguf][@REVISION], or path of a GGUF file.
    /// Of a repository without a file, the best GGUF file that fits into memory with a context of 4096 is fetched (q4_k_m
    /// first), otherwise its safetensors
    model: String,
    /// Store it under this name
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Pull {
    pub fn execute(self) -> Result<()> {
        let mut progress = PullProgress::new(interrupt_flag());
        let store = store()?;
        let file = match &self.name {
            Some(name) => store.pull_as(&self.model, name, &mut progress)?,
            None => store.pull(&self.model, &mut progress)?,
        };
        if self.json {
            let manifest = file.manifest.as_ref();
            return output::json(&json!({
                "name": file.name,
                "path": file.path,
                "bytes": manifest.map(Manifest::bytes),
                "sha256": manifest.map(|manifest| &manifest.main.sha256),
                "source": manifest.map(|manifest| &manifest.source),
            }));
        }
        output::line(&format!("{} is ready: {}", file.name, file.path.display()))
    }
}
