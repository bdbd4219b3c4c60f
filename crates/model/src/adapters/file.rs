//! An adapter as its file says it, before it is held against a model.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ruvllm_kernels::{WeightType, dequantize_row};
use ruvllm_runner::{AdapterId, TokenId};

use super::{AdapterError, gguf, peft};
use crate::formats::gguf::shortened;
use crate::formats::map::FileBytes;

/// Far more than any adapter has. All of a file is read before it is used, since a mapped one may be changed meanwhile.
pub(super) const FILE_BYTES_MAX: u64 = 4 << 30;
/// Larger ranks are no low ranks.
pub(super) const RANK_MAX: usize = 1024;
/// Tokens that switch an adapter on are a few.
const INVOCATION_TOKENS_MAX: usize = 4096;

/// How an adapter is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterFormat {
    /// `adapter_config.json` and `adapter_model.safetensors`.
    Peft,
    Gguf,
}

/// What an adapter's file says, read without a base model.
#[derive(Debug)]
pub struct AdapterFile {
    pub format: AdapterFormat,
    /// The folder or file that was named.
    pub path: PathBuf,
    /// The digest of all of its contents.
    pub id: AdapterId,
    pub file_bytes: u64,
    /// Modules that it changes, without the layer, such as `self_attn.q_proj` or `attn_q`, in alphabetical order.
    pub targets: Vec<String>,
    /// The smallest and the largest rank of its matrices.
    pub ranks: (usize, usize),
    /// What the product of its matrices is multiplied by, divided by the rank: `lora_alpha` where no pattern says otherwise.
    pub alpha: f32,
    /// Name of the base model, if the file says it.
    pub base_model: Option<String>,
    /// The base model's architecture, which GGUF files state.
    pub architecture: Option<String>,
    /// Tokens that switch an activated adapter on.
    pub invocation: Option<Vec<TokenId>>,
    /// How it was made, if it was merged or trained here, as JSON.
    pub recipe: Option<String>,
    pub(super) pairs: Vec<Pair>,
}

/// Two thin matrices whose product is added to one matrix of the base model.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// As the file names it, without what stands before the layers: `layers.0.self_attn.q_proj`, `blk.0.attn_q`.
    pub module: String,
    /// The same as the file has it.
    pub source: String,
    /// `[rank, cols]`
    pub a: Factor,
    /// `[rows, rank]`
    pub b: Factor,
    /// What the product is multiplied by.
    pub scale: f32,
}

impl Pair {
    pub fn rank(&self) -> usize {
        self.a.rows
    }
}

/// A matrix in a file.
#[derive(Clone, Debug)]
pub(super) struct Factor {
    /// The name of its tensor.
    pub name: String,
    pub rows: usize,
    pub cols: usize,
    pub kind: WeightType,
    pub file: FileBytes,
    pub range: Range<usize>,
}

impl Factor {
    /// Returns its numbers, all of which must be finite.
    pub fn floats(&self) -> Result<Vec<f32>, AdapterError> {
        let row_bytes = self.range.len() / self.rows.max(1);
        let mut floats = vec![0.0; self.rows * self.cols];
        for (to, from) in floats.chunks_exact_mut(self.cols).zip(self.file[self.range.clone()].chunks_exact(row_bytes))
        {
            dequantize_row(self.kind, from, to);
        }
        // Without a way out of the loop, many are looked at together.
        if floats.iter().fold(true, |all, float| all & float.is_finite()) {
            return Ok(floats);
        }
        let index = floats.iter().position(|float| !float.is_finite()).expect("one is not finite");
        let problem = format!("has {} at {index}, which is no number: the file is damaged", floats[index]);
        Err(AdapterError::Tensor { name: shortened(&self.name), problem })
    }
}

impl AdapterFile {
    /// Reads what is at `path`: a PEFT folder, its `adapter_model.safetensors`, or a GGUF LoRA. All of it is hashed.
    pub fn open(path: &Path) -> Result<Self, AdapterError> {
        let is_folder = fs::metadata(path).map_err(|source| io_error("read", path, source))?.is_dir();
        let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
        let mut file = match (is_folder, is_safetensors) {
            (true, _) => peft::open(path, path, &path.join(peft::WEIGHTS))?,
            (false, true) => peft::open(path, path.parent().unwrap_or(Path::new("")), path)?,
            (false, false) => gguf::open(path)?,
        };
        file.check_pairs()?;
        Ok(file)
    }

    /// Refuses what no model could use, and sums up what there is.
    fn check_pairs(&mut self) -> Result<(), AdapterError> {
        for pair in &self.pairs {
            let fault = |problem| Err(AdapterError::Tensor { name: shortened(&pair.a.name), problem });
            if pair.a.rows != pair.b.cols {
                return fault(format!("has rank {}, and its partner has {}", pair.a.rows, pair.b.cols));
            }
            if !(1..=RANK_MAX).contains(&pair.rank()) {
                return fault(format!("has rank {}; it must be 1 to {RANK_MAX}", pair.rank()));
            }
            if !pair.scale.is_finite() {
                return fault(format!("is multiplied by {}, which is no finite number", pair.scale));
            }
        }
        let ranks = || self.pairs.iter().map(Pair::rank);
        let (Some(least), Some(most)) = (ranks().min(), ranks().max()) else {
            let problem = "it has no low-rank matrices: it changes nothing".to_owned();
            return Err(AdapterError::File { path: self.path.clone(), problem });
        };
        self.ranks = (least, most);
        let names = self.pairs.iter().map(|pair| pair.module.split('.').skip(2).collect::<Vec<_>>().join("."));
        self.targets = names.collect();
        self.targets.sort();
        self.targets.dedup();
        if let Some(tokens) = self.invocation.as_ref().filter(|tokens| tokens.len() > INVOCATION_TOKENS_MAX) {
            let problem =
                format!("it has {} invocation tokens; at most {INVOCATION_TOKENS_MAX} are accepted", tokens.len());
            return Err(AdapterError::File { path: self.path.clone(), problem });
        }
        Ok(())
    }
}

pub(super) fn io_error(action: &'static str, path: &Path, source: std::io::Error) -> AdapterError {
    AdapterError::Io { action, path: path.to_owned(), source }
}

/// Reads all of a regular file of a bearable size.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, AdapterError> {
    let fault = |problem| AdapterError::File { path: path.to_owned(), problem };
    let metadata = fs::metadata(path).map_err(|source| io_error("read", path, source))?;
    if !metadata.is_file() {
        return Err(fault("it is no regular file".to_owned()));
    }
    if metadata.len() > bytes_max {
        return Err(fault(format!("it has {} bytes; at most {bytes_max} are accepted", metadata.len())));
    }
    fs::read(path).map_err(|source| io_error("read", path, source))
}

/// Returns the digest of an adapter's contents.
pub(super) fn digest(parts: &[&[u8]]) -> AdapterId {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm adapter 1");
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    AdapterId(*hasher.finalize().as_bytes())
}
