//! GGUF LoRA, as llama.cpp's converter writes it: `NAME.lora_a` and `NAME.lora_b` for each tensor of the base model.

use std::collections::BTreeMap;
use std::path::Path;

use ruvllm_runner::TokenId;

use super::file::{FILE_BYTES_MAX, Factor, Pair, digest, read};
use super::{AdapterError, AdapterFile, AdapterFormat};
use crate::formats::gguf::{Array, Gguf, GgufError, MetadataError, Tensor, shortened};
use crate::formats::map::FileBytes;

pub(super) const ALPHA: &str = "adapter.lora.alpha";
pub(super) const INVOCATION: &str = "adapter.alora.invocation_tokens";

pub(super) fn open(path: &Path) -> Result<AdapterFile, AdapterError> {
    let fault = |source: GgufError| AdapterError::Gguf { path: path.to_owned(), source };
    let bytes: FileBytes = read(path, FILE_BYTES_MAX)?.into();
    let gguf = Gguf::parse(bytes.clone()).map_err(fault)?;
    let facts = |error: MetadataError| fault(error.into());
    let text = |key: &str| gguf.metadata().optional::<&str>(key).map_err(facts);
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let got = text(key)?.unwrap_or("missing");
        if got != expected {
            let remedy = if key == "general.type" { "give an adapter, not a model" } else { "only lora is" };
            return Err(AdapterError::Setting { setting: key.to_owned(), got: shortened(got), remedy });
        }
    }
    let alpha = gguf.metadata().optional::<f32>(ALPHA).map_err(facts)?.unwrap_or(0.0);
    let invocation = gguf.metadata().optional::<Array<'_>>(INVOCATION).map_err(facts)?;
    let invocation = invocation.map(|array| tokens(array).map_err(facts)).transpose()?;
    Ok(AdapterFile {
        format: AdapterFormat::Gguf,
        path: path.to_owned(),
        id: digest(&[b"gguf", &bytes]),
        file_bytes: bytes.len() as u64,
        targets: Vec::new(),
        ranks: (0, 0),
        alpha,
        base_model: text("general.base_model.0.name")?.map(shortened),
        architecture: text("general.architecture")?.map(str::to_owned),
        invocation,
        recipe: text(super::peft::RECIPE)?.map(str::to_owned),
        pairs: pairs(&gguf, &bytes, alpha)?,
    })
}

fn tokens(array: Array<'_>) -> Result<Vec<TokenId>, MetadataError> {
    Ok(array.integers()?.map(|token| TokenId::try_from(token).unwrap_or(TokenId::MAX)).collect())
}

fn pairs(gguf: &Gguf, bytes: &FileBytes, alpha: f32) -> Result<Vec<Pair>, AdapterError> {
    let mut modules: BTreeMap<&str, [Option<Factor>; 2]> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let refuse = |problem: &str| AdapterError::Tensor { name: shortened(tensor.name), problem: problem.to_owned() };
        let which = [".weight.lora_a", ".weight.lora_b"].iter().position(|suffix| tensor.name.ends_with(suffix));
        let which = which.ok_or_else(|| refuse("is no low-rank matrix: only these can be applied"))?;
        // Both suffixes are as long.
        let module = &tensor.name[..tensor.name.len() - ".weight.lora_a".len()];
        if module.starts_with("token_embd") || module == "output" {
            return Err(refuse("changes the embedding or the output matrix, which is not supported"));
        }
        modules.entry(module).or_default()[which] = Some(factor(&tensor, bytes)?);
    }
    let mut pairs = Vec::with_capacity(modules.len());
    for (module, factors) in modules {
        let [Some(a), Some(b)] = factors else {
            let problem = "has only one of lora_a and lora_b: the file is damaged".to_owned();
            return Err(AdapterError::Tensor { name: shortened(module), problem });
        };
        // Files without it are not scaled.
        let scale = if alpha == 0.0 { 1.0 } else { alpha / b.cols as f32 };
        pairs.push(Pair { module: module.to_owned(), source: module.to_owned(), a, b, scale });
    }
    Ok(pairs)
}

fn factor(tensor: &Tensor<'_>, bytes: &FileBytes) -> Result<Factor, AdapterError> {
    match *tensor.dims {
        [cols, rows] => Ok(Factor {
            name: tensor.name.to_owned(),
            rows,
            cols,
            kind: tensor.kind,
            file: bytes.clone(),
            range: tensor.range.clone(),
        }),
        _ => {
            let problem = format!("has the dimensions {:?}, which are no matrix", tensor.dims);
            Err(AdapterError::Tensor { name: shortened(tensor.name), problem })
        }
    }
}
