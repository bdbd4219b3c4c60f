//! Adapters that a server starts with, and those that its clients may have loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_server::models::{AdapterOrder, Models};

use crate::flags::adapter::adapter_path;
use crate::flags::size::parse_size;
use crate::loading::store;
use crate::output;
use crate::output::progress::count_bar;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Adapters")]
pub struct AdapterFlags {
    /// A LoRA adapter that requests can name, as `NAME` or `MODEL:NAME`: a PEFT folder or GGUF file, or the name of one in
    /// the store (see `ruvllm adapters`). Write MODEL:NAME=PATH if several models are served. Can be repeated. Adapters that are
    /// stored as MODEL:NAME are loaded on their first request
    #[arg(long, value_name = "NAME[=PATH]", value_parser = parse_adapter)]
    adapter: Vec<NamedSource>,
    /// Folder of adapters that requests can name, each by the name of its PEFT folder or GGUF file. Write MODEL=FOLDER if several
    /// models are served. What is no adapter of the model is left out and named in the log. Can be repeated
    #[arg(long, value_name = "[MODEL=]FOLDER", value_parser = parse_adapters_from)]
    adapters_from: Vec<AdaptersFrom>,
    /// Maximum memory of adapters, within --memory; those that were not used for longest make room. The others stay on disk
    /// [default: a sixteenth of --memory, up to 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    adapter_memory: Option<u64>,
    /// Folder from which keys with the scope admin may have adapters loaded (/v1/load_lora_adapter); by default only from the
    /// store. Can be repeated
    #[arg(long, value_name = "FOLDER")]
    adapter_folder: Vec<PathBuf>,
}

/// An adapter as `--adapter` names it.
#[derive(Clone, Debug, PartialEq)]
struct NamedSource {
    name: String,
    /// A path, or the name of one in the store.
    source: String,
}

/// A folder of adapters, and the model that they are for.
#[derive(Clone, Debug, PartialEq)]
struct AdaptersFrom {
    model: Option<String>,
    folder: PathBuf,
}

impl AdapterFlags {
    /// Returns what `--adapter-memory` says.
    pub fn memory_bytes(&self) -> Option<usize> {
        self.adapter_memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Checks that there is something in each folder of adapters, before models are loaded.
    pub fn check(&self) -> Result<()> {
        self.adapters_from.iter().try_for_each(|from| from.orders().map(drop))
    }

    /// Returns the folders that clients may have adapters loaded from, which must exist: a typing error would allow nothing.
    pub fn folders(&self) -> Result<Vec<PathBuf>> {
        let absolute = |folder: &PathBuf| {
            let found = folder.canonicalize().ok().filter(|folder| folder.is_dir());
            found.with_context(|| format!("--adapter-folder {} is no folder", folder.display()))
        };
        self.adapter_folder.iter().map(absolute).collect()
    }

    /// Loads the adapters of the command line. Called from a thread that may block.
    pub fn load(&self, models: &Arc<Models>) -> Result<()> {
        let (store, runtime) = (store()?, tokio::runtime::Handle::current());
        for NamedSource { name, source } in &self.adapter {
            let failed = || format!("--adapter {name} cannot be served");
            let source = adapter_path(&store, source, None).with_context(failed)?;
            let order = AdapterOrder { name: name.clone(), model: None, source, owner: None, may_replace: false };
            runtime.block_on(models.load_adapter(order)).with_context(failed)?;
        }
        self.adapters_from.iter().try_for_each(|from| from.load(models, &runtime))
    }
}

impl AdaptersFrom {
    /// Loads all adapters in the folder. Those that cannot be used are left out, unless there are no others.
    fn load(&self, models: &Arc<Models>, runtime: &tokio::runtime::Handle) -> Result<()> {
        let folder = self.folder.display();
        let orders = self.orders()?;
        let all = orders.len();
        let bar = count_bar(all, "adapters");
        let (mut loaded, mut first_fault) = (0, None);
        runtime.block_on(models.load_adapters(orders, |order, result| {
            bar.inc(1);
            match result {
                Ok(_) => loaded += 1,
                Err(error) => {
                    tracing::warn!("{} is left out: {error}", order.source.display());
                    first_fault.get_or_insert(error);
                }
            }
        }));
        bar.finish_and_clear();
        match first_fault {
            Some(fault) if loaded == 0 => {
                Err(fault).with_context(|| format!("--adapters-from {folder}: none of {all} can be served"))
            }
            _ => {
                output::remark(&format!("{loaded} of {all} adapters in {folder} can be requested"));
                Ok(())
            }
        }
    }

    /// Returns what there is to load, by name.
    fn orders(&self) -> Result<Vec<AdapterOrder>> {
        let failed = || format!("--adapters-from {} cannot be read", self.folder.display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder).with_context(failed)? {
            let path = entry.with_context(failed)?.path();
            found.extend(adapter_name(&path).map(|name| (name, path)));
        }
        if found.is_empty() {
            bail!("--adapters-from {} has no PEFT folders and no GGUF files", self.folder.display());
        }
        found.sort();
        let order =
            |(name, source)| AdapterOrder { name, model: self.model.clone(), source, owner: None, may_replace: false };
        Ok(found.into_iter().map(order).collect())
    }
}

/// Returns what an adapter at a path is called, if there may be one: the name of a PEFT folder, or of a GGUF file without its end.
fn adapter_name(path: &Path) -> Option<String> {
    let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let name = match path.is_dir() {
        true => path.file_name().filter(|_| path.join("adapter_config.json").exists()),
        false => path.file_stem().filter(|_| is_gguf),
    };
    name.map(|name| name.to_string_lossy().into_owned())
}

fn parse_adapter(text: &str) -> Result<NamedSource, String> {
    let (name, source) = text.split_once('=').unwrap_or((text, text));
    if name.is_empty() || source.is_empty() {
        return Err("expected a name and a path, such as legal=./legal-lora, or a name in the store".to_owned());
    }
    Ok(NamedSource { name: name.to_owned(), source: source.to_owned() })
}

fn parse_adapters_from(text: &str) -> Result<AdaptersFrom, String> {
    let (model, folder) = text.split_once('=').map_or((None, text), |(model, folder)| (Some(model), folder));
    if folder.is_empty() || model.is_some_and(str::is_empty) {
        return Err("expected a folder, or a model and a folder, such as smollm2=./adapters".to_owned());
    }
    Ok(AdaptersFrom { model: model.map(str::to_owned), folder: folder.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_adapters_has_peft_folders_and_gguf_files() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["b", "a", "empty"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        for file in ["a/adapter_config.json", "b/adapter_config.json", "c.GGUF", "notes.txt"] {
            std::fs::write(root.path().join(file), "{}").unwrap();
        }
        let text = format!("m={}", root.path().display());
        let orders = parse_adapters_from(&text).unwrap().orders().unwrap();
        let names: Vec<&str> = orders.iter().map(|order| &*order.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(orders.iter().all(|order| order.model.as_deref() == Some("m") && order.owner.is_none()));
        let none = parse_adapters_from(root.path().join("empty").to_str().unwrap()).unwrap();
        assert!(none.orders().unwrap_err().to_string().contains("no PEFT folders"));
        for wrong in ["", "=x", "m="] {
            assert!(parse_adapters_from(wrong).is_err(), "{wrong}");
        }
    }
}
