//! Embeddings of texts on the command line, by whatever made those that are stored.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use ruvllm_backends::{Encoder, is_encoder};
use ruvllm_memory::Memory;
use ruvllm_runtime::{Engine, NamedEmbedder, hidden_model, vector_of};

use crate::model_flags::{build, guard_folder, model_file};

/// What a text that is searched for is compared by.
pub fn of_text(memory: &Memory, text: &str) -> Result<Vec<f32>> {
    if text.trim().is_empty() {
        bail!("there is no text to look for");
    }
    let Some(name) = memory.embedding()? else {
        bail!("nothing was embedded yet that a text could be compared with; search without one");
    };
    let Some(model) = hidden_model(&name) else { return Ok(vector_of(&*embedder(&name)?.model, text, memory)?) };
    let file = model_file(model, Arc::new(AtomicBool::new(false)))?;
    let builder = Engine::builder(&file.path).calibration_folder(guard_folder()?).keep_hidden_states(true).sequences(1);
    Ok(vector_of(&build(builder, &file.path)?, text, memory)?)
}

/// The model whose embeddings a memory holds, where that is one for embeddings.
pub fn embedder_of(memory: &Memory) -> Result<Option<NamedEmbedder>> {
    match memory.embedding()? {
        Some(name) if hidden_model(&name).is_none() => embedder(&name).map(Some),
        _ => Ok(None),
    }
}

/// An embedding model, fetched if need be.
pub fn embedder(name: &str) -> Result<NamedEmbedder> {
    let file = model_file(name, Arc::new(AtomicBool::new(false)))?;
    if !is_encoder(&file.path) {
        bail!("{name} is not a model for embeddings; use one such as minilm");
    }
    let model = Encoder::open(&file.path).with_context(|| format!("the embedding model {name} cannot be loaded"))?;
    Ok(NamedEmbedder { name: file.name, model: Arc::new(model) })
}
