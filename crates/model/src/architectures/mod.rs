//! The architectures that we can run, one file each: what the metadata of a file says about the layers of its model.

mod gemma2;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod granite;
mod lfm2;
mod lfm2moe;
mod llama;
mod mistral3;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod smollm3;

use crate::config::Config;
use crate::error::LoadError;
use crate::formats::gguf::Gguf;
use crate::keys::Keys;

/// All of them.
pub(crate) const ARCHITECTURES: [Architecture; 16] = [
    llama::ARCHITECTURE,
    gemma2::ARCHITECTURE,
    gemma3::ARCHITECTURE,
    gemma4::ARCHITECTURE,
    gpt_oss::ARCHITECTURE,
    granite::ARCHITECTURE,
    lfm2::ARCHITECTURE,
    lfm2moe::ARCHITECTURE,
    mistral3::ARCHITECTURE,
    phi3::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen3::ARCHITECTURE,
    qwen35::ARCHITECTURE,
    qwen35moe::ARCHITECTURE,
    qwen3moe::ARCHITECTURE,
    smollm3::ARCHITECTURE,
];

/// A name in `general.architecture`, and how a model of that name is described.
pub(crate) struct Architecture {
    pub name: &'static str,
    pub describe: fn(&Keys<'_>) -> Result<Config, LoadError>,
}

/// Returns the names that we can run.
pub fn architecture_names() -> [&'static str; ARCHITECTURES.len()] {
    ARCHITECTURES.map(|architecture| architecture.name)
}

/// Describes the model of a file, without its weights.
pub fn read_config(gguf: &Gguf) -> Result<Config, LoadError> {
    let keys = Keys::new(gguf)?;
    let found = ARCHITECTURES.iter().find(|architecture| architecture.name == keys.architecture());
    let architecture = found.ok_or_else(|| LoadError::Architecture(keys.architecture().to_owned()))?;
    (architecture.describe)(&keys)
}
