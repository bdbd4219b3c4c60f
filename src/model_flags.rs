//! Flags of every command that loads a model, and the loading itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_backends::is_encoder;
use ruvllm_runtime::{BuildError, BuildProgress, Engine, EngineBuilder};
use ruvllm_store::{ModelFile, Store, default_home};

use crate::kv_flags::KvFlags;
use crate::output;
use crate::progress::{PullProgress, byte_bar};

#[derive(Debug, Args)]
pub struct ModelFlags {
    /// A name from the catalogue, hf:OWNER/REPO/FILE.gguf, or the path of a GGUF file
    pub model: String,
    #[command(flatten)]
    pub engine: EngineFlags,
}

/// How models are run.
#[derive(Clone, Debug, Args)]
pub struct EngineFlags {
    /// Threads that compute [default: all cores that this process may use]
    #[arg(long, short = 't', value_name = "N")]
    pub threads: Option<usize>,
    /// Tokens that a text may have at most [default: what the model was made for, up to 131072 and as far as memory
    /// goes]
    #[arg(long, short = 'c', value_name = "TOKENS")]
    pub context: Option<usize>,
    #[command(flatten)]
    pub kv: KvFlags,
}

/// Where it is kept what KV formats models bear.
pub fn guard_folder() -> Result<PathBuf> {
    Ok(default_home()?.join("kv"))
}

/// The store of this user.
pub fn store() -> Result<Store> {
    Ok(Store::open(&default_home()?))
}

/// The file of a model, fetched if need be.
pub fn model_file(name: &str, interrupted: Arc<AtomicBool>) -> Result<ModelFile> {
    Ok(store()?.ensure(name, &mut PullProgress::new(interrupted))?)
}

impl ModelFlags {
    /// The model's file, fetched if need be.
    pub fn file(&self, interrupted: Arc<AtomicBool>) -> Result<ModelFile> {
        model_file(&self.model, interrupted)
    }

    /// Loads the model for `sequences` texts at once.
    pub fn load(&self, interrupted: Arc<AtomicBool>, sequences: usize) -> Result<Engine> {
        let file = self.file(interrupted)?;
        build(self.engine.builder(&file.path)?.sequences(sequences), &file.path)
    }

    pub fn load_with_context(
        &self,
        interrupted: Arc<AtomicBool>,
        sequences: usize,
        context: Option<usize>,
    ) -> Result<Engine> {
        let file = self.file(interrupted)?;
        build(self.engine.builder(&file.path)?.sequences(sequences).context(context), &file.path)
    }
}

impl EngineFlags {
    pub fn builder(&self, file: &Path) -> Result<EngineBuilder> {
        if is_encoder(file) {
            bail!("this model turns texts into vectors and generates nothing: see ruvllm embed --help");
        }
        let builder = Engine::builder(file).threads(self.threads).context(self.context);
        Ok(self.kv.apply(builder)?.calibration_folder(guard_folder()?))
    }
}

/// Loads a model and shows how far it has come.
pub fn build(builder: EngineBuilder, file: &Path) -> Result<Engine> {
    let bar = byte_bar(0, "loading");
    let mut is_measured = false;
    let engine = builder.build_with_progress(&mut |progress| match progress {
        BuildProgress::Weights { done, total } => {
            bar.set_length(total);
            bar.set_position(done);
        }
        BuildProgress::MeasuringKv => {
            is_measured = true;
            let what = "measuring how small keys and values may become (once for a model)";
            if bar.is_hidden() {
                output::remark(what);
            } else {
                bar.set_message(what);
            }
        }
    });
    bar.finish_and_clear();
    if let Some(cold) = engine.as_ref().ok().and_then(Engine::cold_format).filter(|_| is_measured) {
        output::remark(&format!("measured: this model's oldest keys and values may be {cold}"));
    }
    engine.map_err(|error| {
        let what = what_failed(&error, file);
        anyhow::Error::new(error).context(what)
    })
}

/// A mistake in a flag is told with the flag and what would be right.
fn what_failed(error: &BuildError, model: &Path) -> String {
    match error {
        BuildError::DiskTooSmall { .. } => "--kv-disk-size must have room for some pages, such as 1G".to_owned(),
        _ => format!("cannot run {}", model.display()),
    }
}
