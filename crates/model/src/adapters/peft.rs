//! Adapters of PEFT: `adapter_config.json`, and `adapter_model.safetensors` with names of transformers' modules.

mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use config::Config;
use ruvllm_kernels::WeightType;

use super::file::{FILE_BYTES_MAX, Factor, Pair, digest, read};
use super::{AdapterError, AdapterFile, AdapterFormat};
use crate::formats::gguf::shortened;
use crate::formats::map::FileBytes;
use crate::formats::safetensors::{ElementType, Safetensors, StoredTensor};

pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
pub(super) const CONFIG: &str = "adapter_config.json";
/// Key of the recipe in the metadata of the weights.
pub(super) const RECIPE: &str = "ruvllm.recipe";
const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// What stands before the names of a model's modules, and before those of its text model; the longest first.
pub(super) const WRAPPER: &str = "base_model.model.";
const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Reads the adapter whose settings are in `folder`. `named` is what the caller asked for.
pub(super) fn open(named: &Path, folder: &Path, weights: &Path) -> Result<AdapterFile, AdapterError> {
    let config_path = folder.join(CONFIG);
    let config_bytes = read(&config_path, CONFIG_BYTES_MAX)?;
    let config = Config::parse(&config_path, &config_bytes)?;
    let bytes: FileBytes = read(weights, FILE_BYTES_MAX)?.into();
    let tensors = Safetensors::parse(weights, &bytes)?;
    let pairs = pairs(&tensors, &config)?;
    Ok(AdapterFile {
        format: AdapterFormat::Peft,
        path: named.to_owned(),
        id: digest(&[b"peft", &config_bytes, &bytes]),
        file_bytes: (config_bytes.len() + bytes.len()) as u64,
        targets: Vec::new(),
        ranks: (0, 0),
        alpha: config.alpha,
        base_model: config.base_model,
        architecture: None,
        invocation: config.invocation,
        recipe: tensors.metadata(RECIPE).map(str::to_owned),
        pairs,
    })
}

/// Finds the two matrices of each module.
fn pairs(tensors: &Safetensors, config: &Config) -> Result<Vec<Pair>, AdapterError> {
    let mut modules: BTreeMap<&str, [Option<Factor>; 2]> = BTreeMap::new();
    for (name, tensor) in tensors.iter() {
        let (module, which) = module_of(name)?;
        modules.entry(module).or_default()[which] = Some(factor(name, tensor)?);
    }
    let (mut pairs, mut names) = (Vec::with_capacity(modules.len()), BTreeSet::new());
    for (module, factors) in modules {
        let [Some(a), Some(b)] = factors else {
            let problem = "has only one of lora_A and lora_B: the file is damaged".to_owned();
            return Err(AdapterError::Tensor { name: shortened(module), problem });
        };
        let scale = config.scale(module, a.rows)?;
        let source = module.to_owned();
        let module = PREFIXES.iter().find_map(|prefix| module.strip_prefix(prefix)).unwrap_or(module).to_owned();
        if !names.insert(module.clone()) {
            let problem = "is there twice, with and without the name of the model before it".to_owned();
            return Err(AdapterError::Tensor { name: shortened(&module), problem });
        }
        pairs.push(Pair { module, source, a, b, scale });
    }
    Ok(pairs)
}

/// Returns the module that a tensor belongs to, and which matrix it is: 0 is A, 1 is B.
fn module_of(name: &str) -> Result<(&str, usize), AdapterError> {
    let refuse = |problem: &str| Err(AdapterError::Tensor { name: shortened(name), problem: problem.to_owned() });
    let Some(module) = name.strip_prefix(WRAPPER) else {
        return refuse("is no tensor of an adapter, whose names begin with base_model.model.");
    };
    for (which, suffix) in [".lora_A.weight", ".lora_B.weight"].into_iter().enumerate() {
        if let Some(module) = module.strip_suffix(suffix) {
            return Ok((module, which));
        }
    }
    match module {
        _ if module.contains("lora_magnitude_vector") => refuse("belongs to DoRA, which is not supported"),
        _ if module.contains("lora_embedding_") => refuse("changes an embedding, which is not supported"),
        _ if module.ends_with(".bias") => refuse("is a bias, which adapters cannot change here"),
        _ => refuse("is no low-rank matrix: modules that were trained whole are not supported"),
    }
}

fn factor(name: &str, tensor: &StoredTensor) -> Result<Factor, AdapterError> {
    let fault = |problem: String| AdapterError::Tensor { name: shortened(name), problem };
    let kind = match tensor.element {
        ElementType::F32 => WeightType::F32,
        ElementType::F16 => WeightType::F16,
        ElementType::Bf16 => WeightType::Bf16,
        _ => return Err(fault(format!("is of {}; F32, F16 and BF16 are supported", tensor.element_name))),
    };
    match tensor.shape[..] {
        [rows, cols] if rows > 0 && cols > 0 => {
            let (file, range) = (tensor.file.clone(), tensor.range.clone());
            Ok(Factor { name: name.to_owned(), rows, cols, kind, file, range })
        }
        _ => Err(fault(format!("has the shape {:?}, which is no matrix", tensor.shape))),
    }
}
