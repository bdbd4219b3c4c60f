//! What runs a model.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use ruvllm_backends::{CANDLE, HAS_CANDLE, MISTRALRS, generating};
use ruvllm_runtime::{BackendChoice, EngineBuilder, NATIVE, OtherBackends};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendFlag {
    #[default]
    Auto,
    Native,
    Candle,
    #[value(name = "mistralrs", alias = "mistral.rs")]
    MistralRs,
}

#[derive(Clone, Debug, Default, Args)]
pub struct BackendFlags {
    /// What runs the model: native; candle (for architectures that native does not know; slower, and no prefix is cached);
    /// mistralrs (mistral.rs, which you have installed, as a process of its own); or auto: native if it knows the architecture,
    /// otherwise candle. `ruvllm show` says which
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    pub backend: BackendFlag,
    /// Program of mistral.rs, for models that run on it [default: mistralrs on PATH]
    #[arg(long, value_name = "PROGRAM")]
    mistralrs: Option<PathBuf>,
}

impl BackendFlag {
    pub fn choice(self) -> Result<BackendChoice> {
        Ok(match self {
            Self::Auto => BackendChoice::Auto,
            Self::Native => BackendChoice::Named(NATIVE),
            Self::Candle if HAS_CANDLE => BackendChoice::Named(CANDLE),
            Self::Candle => {
                bail!(
                    "--backend candle: this program was built without it; build it with --profile candle --features candle"
                )
            }
            Self::MistralRs => BackendChoice::Named(MISTRALRS),
        })
    }
}

impl BackendFlags {
    /// Returns the backends beside the native one.
    pub fn others(&self) -> OtherBackends {
        generating(self.mistralrs.clone())
    }

    pub fn apply(&self, builder: EngineBuilder) -> Result<EngineBuilder> {
        self.apply_to_one(self.backend, builder)
    }

    /// Has one of several models run by another backend than `--backend` says.
    pub fn apply_to_one(&self, backend: BackendFlag, builder: EngineBuilder) -> Result<EngineBuilder> {
        Ok(builder.backend(backend.choice()?, self.others()))
    }
}

/// Reads `MODEL=BACKEND`.
pub fn parse_backend_of(text: &str) -> Result<(String, BackendFlag), String> {
    let wanted = || "expected a model and a backend, such as smollm2=candle".to_owned();
    let (model, backend) = text.rsplit_once('=').filter(|(model, _)| !model.is_empty()).ok_or_else(wanted)?;
    Ok((model.to_owned(), BackendFlag::from_str(backend, false).map_err(|_| wanted())?))
}
