//! Loading of models in this process, with progress on the terminal.

pub mod embedding;
pub mod learned;
pub mod session;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use ruvllm_backends::HAS_CANDLE;
use ruvllm_runtime::hardware::Hardware;
use ruvllm_runtime::{BuildError, BuildProgress, Engine, EngineBuilder, largest_file};
use ruvllm_store::{ModelFile, Store, StoreConfig, default_home};

use crate::output;
use crate::output::progress::{PullProgress, byte_bar};

/// Returns the folder of measured KV formats, one file per model.
pub fn calibration_folder() -> Result<PathBuf> {
    Ok(default_home()?.join("kv"))
}

/// Opens the model store of this user.
pub fn store() -> Result<Store> {
    let file_bytes_max = Hardware::detect().memory_available_bytes.map(largest_file);
    Ok(Store::with_config(StoreConfig { file_bytes_max, ..StoreConfig::from_env(&default_home()?) }))
}

/// Returns the file of a model, fetched if necessary.
pub fn model_file(name: &str, interrupted: Arc<AtomicBool>) -> Result<ModelFile> {
    Ok(store()?.ensure(name, &mut PullProgress::new(interrupted))?)
}

/// Loads a model and shows the progress.
pub fn build(builder: EngineBuilder, file: &Path) -> Result<Engine> {
    let bar = byte_bar(0, "loading");
    let (mut is_measured, mut is_prefill_measured) = (false, false);
    let tell = |what: &'static str| {
        if bar.is_hidden() {
            output::remark(what);
        } else {
            bar.set_message(what);
        }
    };
    let engine = builder.build_with_progress(&mut |progress| match progress {
        BuildProgress::Weights { done, total } => {
            bar.set_length(total);
            bar.set_position(done);
        }
        BuildProgress::MeasuringKv => {
            is_measured = true;
            tell("measuring which KV formats the model tolerates (once per model)");
        }
        BuildProgress::MeasuringPrefill => {
            is_prefill_measured = true;
            tell("measuring how prompts are computed best (once per model)");
        }
    });
    bar.finish_and_clear();
    if let Some(cold) = engine.as_ref().ok().and_then(Engine::cold_format).filter(|_| is_measured) {
        output::remark(&format!("measured: the oldest keys and values of this model may be stored as {cold}"));
    }
    if let Some(found) = engine.as_ref().ok().and_then(Engine::fast_prefill).filter(|_| is_prefill_measured) {
        let how = match found.rows_min {
            Some(rows) => format!("prompts from {rows} tokens on are computed in bf16"),
            None => "prompts are computed exactly".to_owned(),
        };
        output::remark(&format!("measured: {how} (predictions differ by {:.4} nats)", found.divergence));
    }
    engine.map_err(|error| {
        let what = describe_failure(&error, file);
        anyhow::Error::new(error).context(what)
    })
}

/// Names the flag and a good value where a flag is wrong, otherwise the file.
fn describe_failure(error: &BuildError, model: &Path) -> String {
    match error {
        BuildError::DiskTooSmall { .. } => {
            "--kv-disk-size is too small for KV pages; give a size such as 1G".to_owned()
        }
        BuildError::NoBackend(_) if !HAS_CANDLE => {
            format!("cannot run {}; a program that is built with --features candle knows more models", model.display())
        }
        _ => format!("cannot run {}", model.display()),
    }
}
