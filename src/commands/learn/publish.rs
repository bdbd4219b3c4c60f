//! `ruvllm learn publish`

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_memory::VersionState;
use ruvllm_packs::SecretKey;
use serde_json::json;

use super::shared::{self, Manifest};
use crate::flags::memory::MemoryLocationFlags;
use crate::flags::scope::{ScopeFlags, describe};
use crate::output;

/// Write what was learned into a folder, signed, for other machines
///
/// The folder has the adapter as PEFT reads it, and a manifest: the model, what the gate said, and digests of what it was
/// learned from; no texts, and no names of tenants or users. An adapter can give away what it was trained on all the same:
/// publish what its people would publish. Others take it with `ruvllm learn import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  ruvllm kernels keygen me.key\n  ruvllm learn publish smollm2 ./learned --secret-key me.key\n  \
                        ruvllm learn import smollm2 ./learned --trust ed25519:…    (elsewhere)"
)]
pub struct Publish {
    /// The model
    model: String,
    /// Folder to make
    folder: PathBuf,
    /// Secret key that signs it, as `ruvllm kernels keygen` writes it
    #[arg(long, value_name = "FILE")]
    secret_key: PathBuf,
    /// Which version [default: the one that is served]
    #[arg(long, value_name = "N")]
    learned_version: Option<i64>,
    #[command(flatten)]
    scope: ScopeFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Publish {
    pub fn execute(self) -> Result<()> {
        let key = SecretKey::load(&self.secret_key)?;
        let scope = self.scope.of_named(&self.model)?;
        let memory = self.memory.open()?;
        let served = memory.learning().scope_state(&scope)?.version;
        let number = self.learned_version.unwrap_or(served);
        if number == 0 {
            bail!("{} is answered with the model alone: name another version with --learned-version", describe(&scope));
        }
        let versions = memory.learning().versions(&scope)?;
        let version = versions.into_iter().find(|one| one.version == number);
        let version = version.with_context(|| format!("there is no version {number} of {}", describe(&scope)))?;
        if version.state == VersionState::Withdrawn {
            bail!("version {number} was withdrawn: something that it was learned from was forgotten");
        }
        if version.body.router.is_some() {
            bail!(
                "version {number} chooses between models of this server and is no adapter: only adapters are published"
            );
        }
        let files = self.memory.learned_files()?;
        let missing = || format!("the adapter of version {number} is not on this machine");
        let from = files.find(&version.body.adapter).with_context(missing)?;
        let mut manifest = Manifest::new(&scope.model, &version.body.model_digest, &version.body.adapter);
        manifest.items = version.body.items;
        manifest.gate = version.body.report["gate"].clone();
        shared::write(&from, manifest, &key, &self.folder)?;
        let (folder, signer) = (self.folder.display().to_string(), key.public());
        match self.json {
            true => output::json(&json!({ "folder": folder, "version": number, "signer": signer.to_string() })),
            false => {
                output::line(&format!("version {number} of {} is in {folder}, signed by {signer}", describe(&scope)))
            }
        }
    }
}
