//! Writes an adapter as PEFT does, with its recipe in the metadata of the weights.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use ruvllm_runner::TokenId;
use serde_json::{Map, Value, json};

use super::AdapterError;
use super::file::io_error;
use super::merge::Product;
use super::peft::{CONFIG, RECIPE, WEIGHTS, WRAPPER};

/// What is said of an adapter beside its matrices.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    pub base_model: Option<&'a str>,
    /// Tokens that switch an activated adapter on.
    pub invocation: Option<&'a [TokenId]>,
    /// How it was made, as JSON.
    pub recipe: &'a str,
}

/// Writes a new folder, complete or not at all. Returns the bytes written.
pub(super) fn folder(folder: &Path, about: About<'_>, modules: &[(&str, Product)]) -> Result<u64, AdapterError> {
    if folder.exists() {
        let problem = "it is there already: name a folder that is not".to_owned();
        return Err(AdapterError::File { path: folder.to_owned(), problem });
    }
    let mut partial = folder.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let outcome = fill(partial, about, modules).and_then(|bytes| {
        fs::rename(partial, folder).map_err(|source| io_error("write", folder, source))?;
        Ok(bytes)
    });
    if outcome.is_err() {
        // What could not be written is of no use to anybody.
        let _ = fs::remove_dir_all(partial);
    }
    outcome
}

fn fill(folder: &Path, about: About<'_>, modules: &[(&str, Product)]) -> Result<u64, AdapterError> {
    fs::create_dir_all(folder).map_err(|source| io_error("create", folder, source))?;
    let settings = format!("{:#}\n", settings(about, modules));
    let bytes = write(&folder.join(CONFIG), &[settings.as_bytes()])?;
    Ok(bytes + weights(&folder.join(WEIGHTS), modules, about.recipe)?)
}

/// Products hold their scales, so alpha is the rank everywhere.
fn settings(about: About<'_>, modules: &[(&str, Product)]) -> Value {
    let rank = modules.iter().map(|(_, product)| product.rank).max().unwrap_or(1);
    let others = modules.iter().filter(|(_, product)| product.rank != rank);
    let pattern: Map<String, Value> =
        others.map(|(module, product)| (regex::escape(module), product.rank.into())).collect();
    let mut settings = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": about.base_model,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": modules.iter().map(|(module, _)| *module).collect::<Vec<&str>>(),
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_dropout": 0.0,
        "use_rslora": false,
        "use_dora": false,
    });
    if let Some(tokens) = about.invocation {
        settings["alora_invocation_tokens"] = tokens.into();
    }
    settings
}

fn weights(path: &Path, modules: &[(&str, Product)], recipe: &str) -> Result<u64, AdapterError> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({ "format": "pt", RECIPE: recipe }));
    let (mut parts, mut end): (Vec<&[f32]>, usize) = (Vec::new(), 0);
    for (module, product) in modules {
        let a = ("lora_A", [product.rank, product.cols], &product.a);
        let b = ("lora_B", [product.rows, product.rank], &product.b);
        for (name, shape, numbers) in [a, b] {
            let start = end;
            end += size_of_val(&numbers[..]);
            let info = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] });
            header.insert(format!("{WRAPPER}{module}.{name}.weight"), info);
            parts.push(numbers);
        }
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // Readers map the numbers that follow.
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    let numbers: Vec<u8> = parts.into_iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
    write(path, &[&length, &header, &numbers])
}

fn write(path: &Path, parts: &[&[u8]]) -> Result<u64, AdapterError> {
    let fault = |source| io_error("write", path, source);
    let mut file = File::create(path).map_err(fault)?;
    parts.iter().try_for_each(|part| file.write_all(part)).map_err(fault)?;
    file.sync_all().map_err(fault)?;
    Ok(parts.iter().map(|part| part.len() as u64).sum())
}
