//! `ruvllm adapters list`: the adapters in the store.

use anyhow::Result;
use clap::Args;
use ruvllm_runtime::AdapterFile;
use ruvllm_store::{ListedAdapter, StoredAdapter};
use serde_json::{Value, json};

use super::show;
use crate::loading::store;
use crate::output;

/// List the adapters on this machine
#[derive(Debug, Args)]
pub struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An adapter with what its files say, or why they cannot be used.
enum Row {
    Adapter(StoredAdapter, Box<AdapterFile>),
    Unusable(String, String),
}

impl List {
    pub fn execute(self) -> Result<()> {
        let rows: Vec<Row> = store()?.adapters()?.into_iter().map(Row::of).collect();
        if self.json {
            return output::json(&json!({ "adapters": rows.iter().map(Row::to_json).collect::<Vec<_>>() }));
        }
        if rows.is_empty() {
            output::remark("there are no adapters: fetch one with `ruvllm adapters pull`");
            return Ok(());
        }
        let heading = ["NAME", "BASE", "RANK", "TARGETS", "SIZE", "DIGEST"].map(str::to_owned).to_vec();
        output::table(&[heading].into_iter().chain(rows.iter().map(Row::cells)).collect::<Vec<_>>())
    }
}

impl Row {
    fn of(item: ListedAdapter) -> Self {
        match item {
            ListedAdapter::Adapter(adapter) => match AdapterFile::open(&adapter.path) {
                Ok(file) => Self::Adapter(adapter, Box::new(file)),
                Err(error) => Self::Unusable(adapter.name, error.to_string()),
            },
            ListedAdapter::Unusable { folder, why } => Self::Unusable(folder.display().to_string(), why.to_string()),
        }
    }

    fn cells(&self) -> Vec<String> {
        match self {
            Self::Adapter(adapter, file) => vec![
                adapter.name.clone(),
                output::printable(file.base_model.as_deref().unwrap_or("?")),
                show::ranks(file),
                output::printable(&file.targets.join(",")),
                output::bytes(file.file_bytes),
                file.id.to_string().chars().take(12).collect(),
            ],
            Self::Unusable(name, why) => vec![name.clone(), format!("unusable: {why}")],
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Adapter(adapter, file) => show::to_json(adapter, file),
            Self::Unusable(name, why) => json!({ "name": name, "error": why }),
        }
    }
}
