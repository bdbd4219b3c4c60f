//! The adapter that local users are answered with, if one was learned from them.

use anyhow::{Context, Result};
use ruvllm_memory::{LearnedScope, Memory};
use ruvllm_runtime::{Engine, HeldAdapter, LearnedFiles};

use crate::output;

/// Returns what was learned from local users for a model, ready for use, and what memory and logs call it. What
/// cannot be used is told of, and the model answers alone.
pub fn hold(
    memory: &Memory,
    files: &LearnedFiles,
    engine: &Engine,
    model: &str,
) -> Result<Option<(HeldAdapter, String)>> {
    let scope = LearnedScope { model: model.to_owned(), ..LearnedScope::default() };
    let served = memory.learning().served_versions()?;
    let Some(version) = served.into_iter().find(|version| version.scope == scope) else { return Ok(None) };
    let number = version.version;
    if engine.fingerprint() != version.model_digest {
        output::remark(&format!(
            "version {number} of what was learned is not used: it was judged on another file of the model"
        ));
        return Ok(None);
    }
    let Some(path) = files.find(&version.adapter) else {
        output::remark(&format!(
            "version {number} of what was learned is not used: its adapter is not on this machine"
        ));
        return Ok(None);
    };
    engine.adapters().set_budget(usize::MAX);
    let registered = engine.adapters().register(path);
    let registered = registered.with_context(|| format!("cannot use version {number} of what was learned"))?;
    let held = engine.adapters().hold(&[(registered.id, 1.0)])?;
    output::remark(&format!("answers with version {number} of what was learned"));
    Ok(Some((held, format!("learned-{number}@{}", version.adapter))))
}
