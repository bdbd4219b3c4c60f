//! A loaded model that embeds texts.

use std::path::Path;

use ruvllm_runtime::{EmbedError, EmbedInput, EmbedRequest, Embedder, Embeddings, TooLong};
use ruvllm_text::SpecialTokens;

use crate::config::{Architecture, Config, Purpose};
use crate::error::LoadError;
use crate::pooling::pool;
use crate::trunk::{Stopped, Trunk, folder_of};

/// Returns whether a model's file is one for [`Encoder::open`] or [`CrossEncoder::open`].
///
/// [`CrossEncoder::open`]: crate::CrossEncoder::open
pub fn is_encoder(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
}

/// A sentence-embedding model.
#[derive(Debug)]
pub struct Encoder {
    trunk: Trunk,
}

/// Facts about a model, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderFacts {
    pub architecture: &'static str,
    pub purpose: Purpose,
    pub layers: usize,
    pub heads: usize,
    pub dimensions: usize,
    pub context: usize,
    pub vocabulary: usize,
}

impl EncoderFacts {
    /// Reads the facts of the model whose weights are at `path`, without reading the weights.
    pub fn of(path: &Path) -> Result<Self, LoadError> {
        let config = Config::read(folder_of(path))?;
        let architecture = match config.architecture {
            Architecture::Bert => "bert",
            Architecture::Mpnet => "mpnet",
            Architecture::Roberta => "roberta",
        };
        let Config { purpose, layers, heads, hidden: dimensions, context, vocabulary, .. } = config;
        Ok(Self { architecture, purpose, layers, heads, dimensions, context, vocabulary })
    }
}

impl Encoder {
    /// Loads the weights at `path` and the files beside them.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let config = Config::read(folder_of(path))?;
        if config.purpose != Purpose::Embedding {
            return Err(LoadError::NotForEmbedding);
        }
        let (trunk, ()) = Trunk::open(path, config, |_, _| Ok(()))?;
        Ok(Self { trunk })
    }

    /// Returns the tokens of an input, and the number of tokens left out of it.
    fn tokens(&self, index: usize, input: &EmbedInput, too_long: TooLong) -> Result<(Vec<u32>, usize), EmbedError> {
        let Trunk { config, tokenizer, .. } = &self.trunk;
        let (tokens_max, vocabulary) = (config.context, config.vocabulary);
        // BOS and EOS stay when the end of a text is left out.
        let (mut tokens, around) = match input {
            EmbedInput::Text(text) if text.is_empty() => return Err(EmbedError::Empty { index }),
            EmbedInput::Text(text) => {
                let around = usize::from(tokenizer.adds_bos()) + usize::from(tokenizer.adds_eos());
                (tokenizer.encode(text, SpecialTokens::AsText), around)
            }
            EmbedInput::Tokens(tokens) => (tokens.clone(), 0),
        };
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(EmbedError::NoSuchToken { index, token, vocabulary });
        }
        let count = tokens.len() + around;
        let surplus = count.saturating_sub(tokens_max);
        if surplus > 0 && too_long == TooLong::Refuse {
            return Err(EmbedError::TooLong { index, tokens: count, tokens_max });
        }
        tokens.truncate(tokens.len() - surplus);
        if around > 0 {
            tokens = tokenizer.with_bos_and_eos(tokens);
        }
        if tokens.is_empty() { Err(EmbedError::Empty { index }) } else { Ok((tokens, surplus)) }
    }

    /// Computes the vectors of a batch.
    fn compute(&self, batch: &[&[u32]]) -> candle_core::Result<Vec<Vec<f32>>> {
        let lengths: Vec<usize> = batch.iter().map(|tokens| tokens.len()).collect();
        pool(&self.trunk.forward(batch, None)?, &lengths, self.trunk.config.pooling)
    }
}

impl Embedder for Encoder {
    fn name(&self) -> &'static str {
        "candle"
    }

    fn dimensions(&self) -> usize {
        self.trunk.config.hidden
    }

    fn context(&self) -> usize {
        self.trunk.config.context
    }

    fn embed(&self, request: &EmbedRequest) -> Result<Embeddings, EmbedError> {
        let mut texts = Vec::with_capacity(request.inputs.len());
        let mut cut_tokens = 0;
        for (index, input) in request.inputs.iter().enumerate() {
            if request.cancellation.is_cancelled() {
                return Err(EmbedError::Abandoned { tokens: 0 });
            }
            let (tokens, cut) = self.tokens(index, input, request.too_long)?;
            cut_tokens += cut;
            texts.push(tokens);
        }
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        let compute = |batch: &[usize]| self.compute(&batch.iter().map(|&text| &*texts[text]).collect::<Vec<_>>());
        let is_sound = |vector: &Vec<f32>| vector.iter().all(|value| value.is_finite());
        let computed = self.trunk.in_batches(&lengths, &request.cancellation, compute, is_sound);
        let vectors = computed.map_err(|stopped| match stopped {
            Stopped::Abandoned { tokens } => EmbedError::Abandoned { tokens },
            Stopped::Failed { why } => EmbedError::Failed { why },
        })?;
        Ok(Embeddings { vectors, tokens: lengths, cut_tokens })
    }
}
