//! `ruvllm kernels list`: the packs that are installed.

use anyhow::Result;
use clap::Args;
use ruvllm_packs::{InstalledPack, Pack};
use serde_json::{Value, json};

use super::show;
use crate::flags::pack::{TrustFlags, installed_packs};
use crate::output;

/// List the packs that are installed on this machine
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    trust: TrustFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An installed pack as it is now, or why it cannot be used.
struct Row {
    name: String,
    installed: InstalledPack,
    pack: Result<Pack, String>,
}

impl List {
    pub fn execute(self) -> Result<()> {
        let (packs, trust) = (installed_packs()?, self.trust.trust());
        let rows: Vec<Row> = packs
            .list()?
            .into_iter()
            .map(|(name, installed)| {
                let pack = packs.open(&name, &trust).map(|(pack, _)| pack).map_err(|error| error.to_string());
                Row { name, installed, pack }
            })
            .collect();
        if self.json {
            return output::json(&json!({ "packs": rows.iter().map(Row::to_json).collect::<Vec<_>>() }));
        }
        if rows.is_empty() {
            output::remark("there are no kernel packs: `ruvllm kernels install` adds one");
            return Ok(());
        }
        let heading = ["NAME", "VERSION", "KERNELS", "SIZE", "SIGNED BY", "STATE"].map(str::to_owned).to_vec();
        output::table(&[heading].into_iter().chain(rows.iter().map(Row::cells)).collect::<Vec<_>>())?;
        for (name, why) in rows.iter().filter_map(|row| Some((&row.name, row.pack.as_ref().err()?))) {
            output::line(&format!("{name} cannot be used: {}", output::printable(why)))?;
        }
        Ok(())
    }
}

impl Row {
    fn state(&self) -> &'static str {
        if self.installed.enabled { "enabled" } else { "disabled" }
    }

    fn cells(&self) -> Vec<String> {
        match &self.pack {
            Ok(pack) => vec![
                self.name.clone(),
                pack.manifest.version.to_string(),
                self.installed.kernels.as_ref().map_or(pack.manifest.kernels.len(), Vec::len).to_string(),
                output::bytes(pack.bytes()),
                show::signer(pack),
                self.state().to_owned(),
            ],
            Err(_) => {
                let unknown = || "-".to_owned();
                vec![self.name.clone(), unknown(), unknown(), unknown(), unknown(), "unusable".to_owned()]
            }
        }
    }

    fn to_json(&self) -> Value {
        match &self.pack {
            Ok(pack) => {
                let mut object = show::to_json(pack);
                object["enabled"] = json!(self.installed.enabled);
                object["allowed_kernels"] = json!(self.installed.kernels);
                object
            }
            Err(why) => json!({ "name": self.name, "enabled": self.installed.enabled, "error": why }),
        }
    }
}
