//! What runs a model.

use anyhow::{Result, bail};
use clap::ValueEnum;
use ruvllm_backends::{CANDLE, GENERATING};
use ruvllm_runtime::{BackendChoice, EngineBuilder, NATIVE};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendFlag {
    #[default]
    Auto,
    Native,
    Candle,
    /// Known by name only, so that those who look for it learn why.
    #[value(name = "mistralrs", alias = "mistral.rs", hide = true)]
    MistralRs,
}

impl BackendFlag {
    pub fn choice(self) -> Result<BackendChoice> {
        Ok(match self {
            Self::Auto => BackendChoice::Auto,
            Self::Native => BackendChoice::Named(NATIVE),
            Self::Candle if GENERATING.iter().any(|backend| backend.name() == CANDLE) => BackendChoice::Named(CANDLE),
            Self::Candle => {
                bail!(
                    "--backend candle: this program was built without it; build it with --profile candle --features candle"
                )
            }
            Self::MistralRs => bail!(
                "--backend mistralrs: mistral.rs is no backend of RuvLLM. It gives text, not logits, so grammars, stop strings \
                 and sampling would be its own; run its server beside this one"
            ),
        })
    }

    pub fn apply(self, builder: EngineBuilder) -> Result<EngineBuilder> {
        Ok(builder.backend(self.choice()?, GENERATING))
    }
}

/// Reads `MODEL=BACKEND`.
pub fn parse_backend_of(text: &str) -> Result<(String, BackendFlag), String> {
    let wanted = || "expected a model and a backend, such as smollm2=candle".to_owned();
    let (model, backend) = text.rsplit_once('=').filter(|(model, _)| !model.is_empty()).ok_or_else(wanted)?;
    Ok((model.to_owned(), BackendFlag::from_str(backend, false).map_err(|_| wanted())?))
}
