//! Embeddings of texts on the command line, made by the model that made the stored ones.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use ruvllm_backends::{Encoder, is_encoder};
use ruvllm_memory::Memory;
use ruvllm_runtime::{Engine, NamedEmbedder, hidden_model, vector_of};

use super::{build, calibration_folder, model_file};

/// Embeds a search text so that it can be compared with what the memory holds.
pub fn embed_text(memory: &Memory, text: &str) -> Result<Vec<f32>> {
    if text.trim().is_empty() {
        bail!("the search text is empty");
    }
    let Some(name) = memory.embeddings().name()? else {
        bail!("the memory holds no embeddings yet; search without a text");
    };
    let Some(model) = hidden_model(&name) else { return Ok(vector_of(&*embedder(&name)?.model, text, memory)?) };
    let file = model_file(model, Arc::new(AtomicBool::new(false)))?;
    let builder =
        Engine::builder(&file.path).calibration_folder(calibration_folder()?).keep_hidden_states(true).sequences(1);
    Ok(vector_of(&build(builder, &file.path)?, text, memory)?)
}

/// Returns the embedding model that a memory uses; `None` if it stores hidden states, or nothing yet.
pub fn embedder_of(memory: &Memory) -> Result<Option<NamedEmbedder>> {
    match memory.embeddings().name()? {
        Some(name) if hidden_model(&name).is_none() => embedder(&name).map(Some),
        _ => Ok(None),
    }
}

/// Loads an embedding model, fetched if necessary.
pub fn embedder(name: &str) -> Result<NamedEmbedder> {
    let file = model_file(name, Arc::new(AtomicBool::new(false)))?;
    if !is_encoder(&file.path) {
        bail!("{name} is not an embedding model; use one such as minilm");
    }
    let model = Encoder::open(&file.path).with_context(|| format!("cannot load the embedding model {name}"))?;
    Ok(NamedEmbedder { name: file.name, model: Arc::new(model) })
}
