//! Presents a model of transformers, a folder with `config.json` and safetensors, as the GGUF file that llama.cpp's
//! converter would make of it: metadata under GGUF's keys, tensors under GGUF's names. Nothing is copied: tensors that
//! have to be changed are changed when they are read.

mod architecture;
mod config;
mod generation;
mod metadata;
mod names;
mod pre_tokenizer;
mod rope_tensors;
mod tensors;
mod vocabulary;
mod weights;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use thiserror::Error;

use crate::formats::gguf::write::{Header, WriteError};
use crate::formats::gguf::{Gguf, GgufError, Value, cut, shortened};
use crate::formats::safetensors::{ElementType, Safetensors, SafetensorsError};
use config::Settings;
use metadata::Keys;
use tensors::Converter;
use weights::Weights;

pub(crate) use tensors::{half_of_pair, is_interleaved};

/// Returns the GGUF name of a layer's matrix, such as `attn_q` for `self_attn.q_proj`.
pub(crate) fn layer_tensor(architecture: &str, module: &str) -> Option<String> {
    Some(names::inner(architecture, &format!("{module}.weight"))?.strip_suffix(".weight")?.to_owned())
}

pub(crate) const CONFIG: &str = "config.json";
/// The largest are those of tokenizers, with some tens of megabytes.
const JSON_BYTES_MAX: u64 = 512 << 20;

/// Far more than any vocabulary has: a token takes more memory than a row of a hostile file.
const TOKENS_MAX: usize = 1 << 22;

/// Why a folder cannot be read as a model.
#[derive(Debug, Error)]
pub enum HuggingFaceError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} cannot be read: {problem}", path.display())]
    Json { path: PathBuf, problem: String },
    #[error("{} has no {missing}: {remedy}", folder.display())]
    MissingFile { folder: PathBuf, missing: &'static str, remedy: &'static str },
    #[error("config.json: {key} is missing")]
    MissingSetting { key: String },
    #[error("config.json: {key} is {got}, which {problem}")]
    Setting { key: String, got: String, problem: &'static str },
    #[error("config.json: the model {class:?} is not supported; known: {known}")]
    Architecture { class: String, known: String },
    #[error(
        "config.json: quantization_config.quant_method is {method:?}, which is not supported: fetch the model in 16 bits, or \
         as GGUF"
    )]
    Quantized { method: String },
    #[error("tensor {name:?} is there twice, with and without the name of the model before it")]
    Twice { name: String },
    #[error("tensor {name:?} is missing")]
    MissingTensor { name: String },
    #[error("tensor {name:?} is not part of the architecture, so the answers would be wrong without it")]
    UnknownTensor { name: String },
    #[error("tensor {name:?} has the shape {got:?}; it needs {expected}")]
    Shape { name: String, got: Vec<usize>, expected: String },
    #[error("tensor {name:?} is of {got}; weights must be F32, F16 or BF16")]
    ElementType { name: String, got: String },
    #[error("{file}: {problem}")]
    Tokenizer { file: &'static str, problem: String },
    #[error(transparent)]
    Weights(#[from] SafetensorsError),
    #[error("its weights cannot be described as GGUF: {0}")]
    Describe(#[from] WriteError),
    #[error("its weights cannot be described as GGUF: {0}")]
    Described(#[from] GgufError),
}

/// Opens the model in a folder.
pub fn open(folder: &Path) -> Result<Gguf, HuggingFaceError> {
    let config = read_json(folder, CONFIG)?.ok_or_else(|| HuggingFaceError::MissingFile {
        folder: folder.to_owned(),
        missing: CONFIG,
        remedy: "a folder of a model has it beside its safetensors",
    })?;
    let settings = Settings::new(config);
    refuse_quantized(&settings)?;
    let architecture = architecture::architecture(&settings)?;
    let files = Safetensors::open(folder)?;
    let weights = Weights::new(&files)?;
    let mut header = Header::new();
    header.set("general.architecture", Value::String(architecture));
    header.set("general.type", Value::String("model"));
    if let Some(name) = folder.canonicalize().ok().as_deref().and_then(Path::file_name).and_then(|name| name.to_str()) {
        header.set("general.name", Value::String(name));
    }
    let embedding = weights.get("embed_tokens.weight").map(|tensor| tensor.element);
    header.set("general.file_type", Value::U32(file_type(embedding)));
    Keys { header: &mut header, architecture, settings: &settings, weights: &weights }.fill()?;
    let generation = read_json(folder, generation::CONFIG)?.unwrap_or_default();
    generation::fill(&mut header, &generation);
    vocabulary::fill(&mut header, folder, &settings, &generation, vocabulary_rows(&weights)?)?;
    let tensors = Converter::new(architecture, &settings, &weights).tensors()?;
    let mut assemblies = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        header.add_tensor(&tensor.name, &tensor.dims, tensor.kind);
        assemblies.push(tensor.assembly);
    }
    Ok(Gguf::assembled(&header.layout()?, assemblies)?)
}

/// Returns how many tokens the embedding has rows for.
fn vocabulary_rows(weights: &Weights<'_>) -> Result<usize, HuggingFaceError> {
    let name = "embed_tokens.weight";
    match weights.get(name).map(|tensor| &tensor.shape[..]) {
        None => Ok(0),
        Some(&[rows, _]) if rows <= TOKENS_MAX => Ok(rows),
        Some(shape) => Err(HuggingFaceError::Shape {
            name: name.to_owned(),
            got: shape.to_vec(),
            expected: format!("a row for each token, at most {TOKENS_MAX}"),
        }),
    }
}

/// Returns GGUF's number for files of mostly such weights.
fn file_type(element: Option<ElementType>) -> u32 {
    match element {
        Some(ElementType::F32) => 0,
        Some(ElementType::F16) => 1,
        _ => 32,
    }
}

/// Weights that were quantized by other programs are refused by name, except those that GGUF has too.
fn refuse_quantized(settings: &Settings) -> Result<(), HuggingFaceError> {
    let Some(config) = settings.get("quantization_config") else { return Ok(()) };
    match config["quant_method"].as_str() {
        Some("mxfp4") => Ok(()),
        method => Err(HuggingFaceError::Quantized { method: shortened(method.unwrap_or("unknown")) }),
    }
}

/// Reads a JSON object of the folder, if the file is there.
fn read_json(folder: &Path, name: &str) -> Result<Option<Map<String, Json>>, HuggingFaceError> {
    let Some(text) = read_file(folder, name)? else { return Ok(None) };
    match serde_json::from_slice(&text) {
        Ok(object) => Ok(Some(object)),
        Err(error) => Err(HuggingFaceError::Json { path: folder.join(name), problem: cut(&error.to_string(), 300) }),
    }
}

fn read_file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, HuggingFaceError> {
    let path = folder.join(name);
    let failed = |source| HuggingFaceError::Read { path: path.clone(), source };
    match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
        Ok(found) if !found.is_file() || found.len() > JSON_BYTES_MAX => {
            Err(HuggingFaceError::Json { path, problem: "it is no file, or larger than any of its kind".to_owned() })
        }
        Ok(_) => Ok(Some(fs::read(&path).map_err(failed)?)),
    }
}
