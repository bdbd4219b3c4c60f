//! `ruvllm list`: the models on this machine, and those that can be pulled by name.

use anyhow::Result;
use clap::Args;
use ruvllm_store::{Listed, Manifest};
use serde_json::{Value, json};

use crate::loading::store;
use crate::output;

/// List the models on this machine and those that can be pulled by name
#[derive(Debug, Args)]
pub struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl List {
    pub fn execute(self) -> Result<()> {
        let store = store()?;
        let listed = store.list()?;
        let is_here = |name: &str| listed.iter().any(|item| matches!(item, Listed::Model(file) if file.name == name));
        let available: Vec<_> = store.catalogue().entries.iter().filter(|entry| !is_here(&entry.name)).collect();
        if self.json {
            let available: Vec<Value> = available
                .iter()
                .map(|entry| {
                    json!({ "name": entry.name, "bytes": entry.bytes(), "licence": entry.licence,
                            "description": entry.description, "pinned": entry.pinned().is_some() })
                })
                .collect();
            return output::json(&json!({
                "models": listed.iter().map(to_json).collect::<Vec<_>>(),
                "available": available,
            }));
        }
        let mut rows = vec![["NAME", "SIZE", "LICENCE", ""].map(str::to_owned).to_vec()];
        for item in &listed {
            rows.push(match item {
                Listed::Model(file) => {
                    let manifest = file.manifest.as_ref();
                    vec![
                        file.name.clone(),
                        manifest.map_or_else(String::new, |manifest| output::bytes(manifest.bytes())),
                        manifest.and_then(|manifest| manifest.licence.clone()).unwrap_or_default(),
                        file.base.as_ref().map_or_else(|| "here".to_owned(), |base| format!("here, made from {base}")),
                    ]
                }
                Listed::Unusable { folder, why } => {
                    vec![folder.display().to_string(), String::new(), String::new(), format!("unusable: {why}")]
                }
            });
        }
        for entry in available {
            let how = match entry.pinned() {
                Some(_) => format!("ruvllm pull {}", entry.name),
                None => format!("ruvllm pull {} (from the hub, not pinned)", entry.name),
            };
            let size = entry.bytes().map(output::bytes).unwrap_or_default();
            rows.push(vec![entry.name.clone(), size, entry.licence.clone(), how]);
        }
        output::table(&rows)
    }
}

fn to_json(item: &Listed) -> Value {
    match item {
        Listed::Model(file) => {
            let manifest = file.manifest.as_ref();
            json!({
                "name": file.name,
                "path": file.path,
                "bytes": manifest.map(Manifest::bytes),
                "sha256": manifest.map(|manifest| &manifest.main.sha256),
                "licence": manifest.and_then(|manifest| manifest.licence.as_ref()),
                "base": file.base,
            })
        }
        Listed::Unusable { folder, why } => json!({ "path": folder, "error": why.to_string() }),
    }
}
