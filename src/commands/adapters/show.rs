//! `ruvllm adapters show`: all that the files of an adapter say.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_runtime::{AdapterFile, AdapterFormat};
use ruvllm_store::StoredAdapter;
use serde_json::{Value, json};

use crate::flags::adapter::stored_adapter;
use crate::loading::store;
use crate::output;

/// Show what is in an adapter
#[derive(Debug, Args)]
pub struct Show {
    /// Name of an adapter on this machine (see `ruvllm adapters list`), or path of a PEFT folder or a GGUF file
    #[arg(value_name = "ADAPTER")]
    adapter: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Show {
    pub fn execute(self) -> Result<()> {
        let store = store()?;
        let (path, stored) = match stored_adapter(&store, &self.adapter) {
            Ok(stored) => (stored.path.clone(), Some(stored)),
            Err(_) if Path::new(&self.adapter).exists() => (self.adapter.clone().into(), None),
            Err(error) => return Err(error.into()),
        };
        let file = AdapterFile::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if self.json {
            let object = stored.map_or_else(|| file_json(&file), |stored| to_json(&stored, &file));
            return output::json(&object);
        }
        let name = stored.as_ref().map(|stored| stored.name.clone());
        let source = stored.map(|stored| stored.manifest.source);
        let tokens = |tokens: &Vec<u32>| tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let rows = [
            ("name", name),
            ("path", Some(file.path.display().to_string())),
            ("source", source),
            ("format", Some(format(&file).to_owned())),
            ("base model", file.base_model.clone()),
            ("rank", Some(ranks(&file))),
            ("alpha", Some(file.alpha.to_string())),
            ("targets", Some(file.targets.join(", "))),
            ("invocation tokens", file.invocation.as_ref().map(tokens)),
            (made(&file), file.recipe.clone()),
            ("size", Some(output::bytes(file.file_bytes))),
            ("digest", Some(file.id.to_string())),
        ];
        let row = |(key, value): (&str, Option<String>)| Some(vec![key.to_owned(), output::printable(&value?)]);
        output::table(&rows.into_iter().filter_map(row).collect::<Vec<_>>())
    }
}

/// Returns an adapter of the store with what its files say.
pub fn to_json(adapter: &StoredAdapter, file: &AdapterFile) -> Value {
    let mut object = file_json(file);
    object["name"] = json!(adapter.name);
    object["source"] = json!(adapter.manifest.source);
    object["pulled_at"] = json!(adapter.manifest.pulled_at_unix_s);
    object
}

fn file_json(file: &AdapterFile) -> Value {
    json!({
        "path": file.path,
        "format": format(file),
        "base_model": file.base_model,
        "rank_min": file.ranks.0,
        "rank_max": file.ranks.1,
        "alpha": file.alpha,
        "targets": file.targets,
        "invocation_tokens": file.invocation,
        "recipe": file.recipe,
        "bytes": file.file_bytes,
        "digest": file.id.to_string(),
    })
}

/// Returns what a recipe tells: those of merged adapters name the others.
fn made(file: &AdapterFile) -> &'static str {
    let recipe = file.recipe.as_deref().and_then(|recipe| serde_json::from_str::<Value>(recipe).ok());
    if recipe.is_some_and(|recipe| recipe["method"] == "trained") { "trained by" } else { "merged from" }
}

/// Returns the rank, or the smallest and the largest.
pub fn ranks(file: &AdapterFile) -> String {
    match file.ranks {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least}-{most}"),
    }
}

fn format(file: &AdapterFile) -> &'static str {
    match file.format {
        AdapterFormat::Peft => "peft",
        AdapterFormat::Gguf => "gguf",
    }
}
