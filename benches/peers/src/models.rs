//! The model files, and what a token costs in them.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use peers_protocol::Work;
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::formats::gguf::facts::ModelFacts;
use ruvllm_store::{Event, Store, default_home};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Model {
    /// As it was asked for, or the file's name.
    pub name: String,
    pub path: PathBuf,
    pub file_bytes: u64,
    pub vocabulary: usize,
    /// Bytes of weights that are read for one token on its own.
    pub weight_bytes_per_token: u64,
    /// Multiplications with weights for one prompt token: the output matrix is only for the last.
    pub products_per_prompt_token: u64,
    /// Of one token in the KV cache, in half floats.
    pub kv_bytes_per_token: u64,
}

pub fn find_all(names: &[String]) -> Result<Vec<Model>> {
    let store = Store::open(&default_home()?);
    names.iter().map(|name| find(&store, name).with_context(|| format!("model {name}"))).collect()
}

fn find(store: &Store, name: &str) -> Result<Model> {
    let file = store.ensure(name, &mut |event: Event| {
        if let Event::TrySource { source } = event {
            eprintln!("fetching {name} from {source}");
        }
    })?;
    // The whole file, once: loading is measured from the page cache.
    io::copy(&mut File::open(&file.path)?, &mut io::sink())?;
    let gguf = Gguf::open(&file.path)?;
    let (embedding, output) = ("token_embd.weight", "output.weight");
    // Without a matrix of its own, the output is the embedding's; with one, a token reads one row of the embedding.
    let unread = if gguf.tensor(output).is_some() { embedding } else { "" };
    let matrices = || gguf.tensors().filter(|tensor| tensor.dims.len() == 2);
    let in_layers = matrices().filter(|tensor| tensor.name != embedding && tensor.name != output);
    Ok(Model {
        name: short_name(name),
        vocabulary: gguf
            .tensor(embedding)
            .and_then(|tensor| tensor.dims.get(1).copied())
            .context("it has no embedding")?,
        file_bytes: fs::metadata(&file.path)?.len(),
        path: file.path.canonicalize()?,
        weight_bytes_per_token: matrices()
            .filter(|tensor| tensor.name != unread)
            .map(|tensor| tensor.bytes_len() as u64)
            .sum(),
        products_per_prompt_token: in_layers.map(|tensor| tensor.element_count() as u64).sum(),
        kv_bytes_per_token: ModelFacts::of(&gguf)?.kv_bytes_per_token().unwrap_or(0),
    })
}

fn short_name(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.strip_suffix(".gguf").unwrap_or(file).to_owned()
}

/// What a work takes from the machine at a rate of one token per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cost {
    /// Bytes of weights and KV that are read for a token.
    ReadBytes(f64),
    /// Multiplications and additions of weights for a token.
    Operations(f64),
}

impl Model {
    /// `None` for works that no single ceiling limits.
    pub fn cost(&self, work: Work, kv_bytes_per_number: f64) -> Option<Cost> {
        match work {
            Work::Prefill { .. } => Some(Cost::Operations(2.0 * self.products_per_prompt_token as f64)),
            Work::Decode { tokens, depth } => {
                let context = depth as f64 + tokens as f64 / 2.0;
                let kv = self.kv_bytes_per_token as f64 * kv_bytes_per_number / 2.0 * context;
                Some(Cost::ReadBytes(self.weight_bytes_per_token as f64 + kv))
            }
            Work::NextTurn { .. } | Work::Sequences { .. } => None,
        }
    }
}
