//! Writes an adapter as llama.cpp's converter does, with its recipe in the metadata.

use std::path::Path;

use ruvllm_kernels::WeightType;

use super::product::Product;
use crate::adapters::gguf::{ALPHA, INVOCATION};
use crate::adapters::peft::RECIPE;
use crate::adapters::{AdapterError, AdapterFile};
use crate::formats::gguf::Value;
use crate::formats::gguf::write::{Header, Writer};

/// Writes a new file, complete or not at all. `like` is an adapter of the same base model. Returns the bytes written.
pub(super) fn file(
    path: &Path,
    like: &AdapterFile,
    modules: &[(&str, Product)],
    recipe: &str,
) -> Result<u64, AdapterError> {
    if path.exists() {
        let problem = "it is there already: name a file that is not".to_owned();
        return Err(AdapterError::File { path: path.to_owned(), problem });
    }
    let mut header = Header::new();
    let architecture = like.architecture.as_deref();
    let texts = [
        ("general.type", Some("adapter")),
        ("general.architecture", architecture),
        ("general.base_model.0.name", like.base_model.as_deref()),
        ("adapter.type", Some("lora")),
        (RECIPE, Some(recipe)),
    ];
    for (key, text) in texts {
        text.into_iter().for_each(|text| header.set(key, Value::String(text)));
    }
    // Products hold their scales; 0 says that nothing is scaled.
    header.set(ALPHA, Value::F32(0.0));
    if let Some(tokens) = &like.invocation {
        header.set_numbers(INVOCATION, tokens);
    }
    for (module, product) in modules {
        let Product { rows, cols, rank, .. } = *product;
        header.add_tensor(&format!("{module}.weight.lora_a"), &[cols, rank], WeightType::F32);
        header.add_tensor(&format!("{module}.weight.lora_b"), &[rank, rows], WeightType::F32);
    }
    let file_bytes = header.layout()?.file_bytes();
    let mut writer = Writer::create(path, &header)?;
    for numbers in modules.iter().flat_map(|(_, product)| [&product.a, &product.b]) {
        writer.write(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())?;
    }
    writer.finish()?;
    Ok(file_bytes)
}
