//! `ruvllm kernels show`: what is in a pack.

use anyhow::Result;
use clap::Args;
use ruvllm_packs::{Kernel, Pack};
use serde_json::{Value, json};

use crate::flags::pack::{FoundPack, TrustFlags};
use crate::output;

/// Show what is in a pack
#[derive(Debug, Args)]
pub struct Show {
    /// Path of a folder (with a slash) or a .tar.zst, or name of an installed pack
    #[arg(value_name = "PACK")]
    pack: String,
    #[command(flatten)]
    trust: TrustFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Show {
    pub fn execute(self) -> Result<()> {
        let FoundPack { pack, .. } = FoundPack::find(&self.pack, &self.trust.trust())?;
        if self.json {
            return output::json(&to_json(&pack));
        }
        let manifest = &pack.manifest;
        let rows = [
            ("name", manifest.name.clone()),
            ("version", manifest.version.to_string()),
            ("description", manifest.description.clone()),
            ("author", manifest.author.name.clone()),
            ("signed by", signer(&pack)),
            ("created", manifest.created.clone()),
            ("size", output::bytes(pack.bytes())),
            ("digest", pack.digest()),
        ];
        let rows = rows.map(|(key, value)| vec![key.to_owned(), output::printable(&value)]);
        output::table(&rows)?;
        output::line("")?;
        let heading = ["KERNEL", "COMPUTES", "MODULE", "PAGES", "BUDGET", "NEEDS"].map(str::to_owned).to_vec();
        output::table(&[heading].into_iter().chain(manifest.kernels.iter().map(cells)).collect::<Vec<_>>())
    }
}

fn cells(kernel: &Kernel) -> Vec<String> {
    let needs = kernel.platforms.iter().map(|platform| {
        let features = platform.features.join(" ");
        if platform.runtime == "any" { features } else { format!("{}: {features}", platform.runtime) }
    });
    vec![
        kernel.id.clone(),
        kernel.category.to_string(),
        kernel.path.clone(),
        kernel.limits.memory_pages.to_string(),
        format!("{} ms", kernel.limits.budget_ms),
        needs.collect::<Vec<_>>().join("; "),
    ]
}

/// Returns whose signature a pack has, or that it has none.
pub fn signer(pack: &Pack) -> String {
    pack.signer.map_or_else(|| "unsigned".to_owned(), |key| key.to_string())
}

/// Returns what lines about a pack call it.
pub fn label(pack: &Pack) -> String {
    let unsigned = if pack.signer.is_none() { ", which is unsigned," } else { "" };
    format!("{} {}{unsigned}", pack.manifest.name, pack.manifest.version)
}

pub fn to_json(pack: &Pack) -> Value {
    json!({
        "name": pack.manifest.name,
        "version": pack.manifest.version,
        "digest": pack.digest(),
        "signer": pack.signer,
        "unsigned": pack.signer.is_none(),
        "bytes": pack.bytes(),
        "manifest": pack.manifest,
    })
}
