//! The engine, encoder or reranker of a served model.

use std::fmt;
use std::sync::Arc;

use ruvllm_runtime::{Embedder, Engine, Reranker};

/// A loaded model, by its kind.
#[derive(Clone, Debug)]
pub enum Runner {
    /// Generates text.
    Generator(Engine),
    /// Embeds texts.
    Encoder(Arc<dyn Embedder>),
    /// Scores documents by a query.
    Reranker(Arc<dyn Reranker>),
}

/// The kinds of models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunnerKind {
    #[default]
    Generator,
    Encoder,
    Reranker,
}

impl Runner {
    pub fn kind(&self) -> RunnerKind {
        match self {
            Self::Generator(_) => RunnerKind::Generator,
            Self::Encoder(_) => RunnerKind::Encoder,
            Self::Reranker(_) => RunnerKind::Reranker,
        }
    }

    pub fn generator(&self) -> Option<&Engine> {
        match self {
            Self::Generator(engine) => Some(engine),
            Self::Encoder(_) | Self::Reranker(_) => None,
        }
    }

    pub fn encoder(&self) -> Option<&Arc<dyn Embedder>> {
        match self {
            Self::Encoder(encoder) => Some(encoder),
            Self::Generator(_) | Self::Reranker(_) => None,
        }
    }

    pub fn reranker(&self) -> Option<&Arc<dyn Reranker>> {
        match self {
            Self::Reranker(reranker) => Some(reranker),
            Self::Generator(_) | Self::Encoder(_) => None,
        }
    }

    /// Returns the name of what runs the model.
    pub fn backend(&self) -> &'static str {
        match self {
            Self::Generator(engine) => engine.backend(),
            Self::Encoder(encoder) => encoder.name(),
            Self::Reranker(reranker) => reranker.name(),
        }
    }

    /// Returns the context length in tokens.
    pub fn context(&self) -> usize {
        match self {
            Self::Generator(engine) => engine.context(),
            Self::Encoder(encoder) => encoder.context(),
            Self::Reranker(reranker) => reranker.context(),
        }
    }
}

impl RunnerKind {
    /// Returns the endpoint that models of this kind are for.
    pub fn endpoint(self) -> &'static str {
        match self {
            Self::Generator => "/v1/chat/completions",
            Self::Encoder => "/v1/embeddings",
            Self::Reranker => "/v1/rerank",
        }
    }
}

/// What a model of this kind does, for messages: "model X ...".
impl fmt::Display for RunnerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generator => "generates text",
            Self::Encoder => "is an embedding model",
            Self::Reranker => "is a reranking model",
        })
    }
}
