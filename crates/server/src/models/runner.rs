//! The engine or encoder of a served model.

use std::sync::Arc;

use ruvllm_runtime::{Embedder, Engine};

/// The kinds of models.
#[derive(Clone, Debug)]
pub enum Runner {
    /// Generates text.
    Generator(Engine),
    /// Embeds texts.
    Encoder(Arc<dyn Embedder>),
}

impl Runner {
    pub fn generator(&self) -> Option<&Engine> {
        match self {
            Self::Generator(engine) => Some(engine),
            Self::Encoder(_) => None,
        }
    }

    pub fn encoder(&self) -> Option<&Arc<dyn Embedder>> {
        match self {
            Self::Generator(_) => None,
            Self::Encoder(encoder) => Some(encoder),
        }
    }

    /// Returns the context length in tokens.
    pub fn context(&self) -> usize {
        match self {
            Self::Generator(engine) => engine.context(),
            Self::Encoder(encoder) => encoder.context(),
        }
    }
}
