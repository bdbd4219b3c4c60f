//! A loaded model that embeds texts.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_core::{Device, Tensor};
use ruvllm_model::formats::map::FileBytes;
use ruvllm_runtime::{EmbedError, EmbedInput, EmbedRequest, Embedder, Embeddings, TooLong};
use ruvllm_text::{SpecialTokens, Tokenizer};

use crate::architectures::Model;
use crate::batches::batches;
use crate::config::{Architecture, Config, tokenizer_bytes};
use crate::error::LoadError;
use crate::pooling::pool;
use crate::weights::Weights;

/// Returns whether a model's file is one for [`Encoder::open`].
pub fn is_encoder(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
}

/// A sentence-embedding model.
#[derive(Debug)]
pub struct Encoder {
    config: Config,
    tokenizer: Tokenizer,
    model: Model,
    /// Held for a batch, which uses all cores: short requests run between the batches of long ones.
    batch: Mutex<()>,
}

/// Facts about a model, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderFacts {
    pub architecture: &'static str,
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
        };
        let Config { layers, heads, hidden: dimensions, context, vocabulary, .. } = config;
        Ok(Self { architecture, layers, heads, dimensions, context, vocabulary })
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Encoder {
    /// Loads the weights at `path` and the files beside them.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let folder = folder_of(path);
        let config = Config::read(folder)?;
        let tokenizer_path = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::from_tokenizer_json(&tokenizer_bytes(&tokenizer_path)?);
        let tokenizer = tokenizer.map_err(|source| LoadError::Tokenizer { path: tokenizer_path, source })?;
        if tokenizer.vocab_size() > config.vocabulary {
            return Err(LoadError::TokenizerTooLarge { tokens: tokenizer.vocab_size(), vocabulary: config.vocabulary });
        }
        let bytes = FileBytes::open(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
        let weights = Weights::new(&bytes, path)?;
        let model = Model::load(&weights, &config)?;
        weights.finish()?;
        Ok(Self { config, tokenizer, model, batch: Mutex::default() })
    }

    /// Returns the tokens of an input, and the number of tokens left out of it.
    fn tokens(&self, index: usize, input: &EmbedInput, too_long: TooLong) -> Result<(Vec<u32>, usize), EmbedError> {
        let tokens_max = self.config.context;
        let vocabulary = self.config.vocabulary;
        // BOS and EOS stay when the end of a text is left out.
        let (mut tokens, around) = match input {
            EmbedInput::Text(text) if text.is_empty() => return Err(EmbedError::Empty { index }),
            EmbedInput::Text(text) => {
                let around = usize::from(self.tokenizer.adds_bos()) + usize::from(self.tokenizer.adds_eos());
                (self.tokenizer.encode(text, SpecialTokens::AsText), around)
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
            tokens = self.tokenizer.with_bos_and_eos(tokens);
        }
        if tokens.is_empty() { Err(EmbedError::Empty { index }) } else { Ok((tokens, surplus)) }
    }

    /// Computes the vectors of a batch.
    fn compute(&self, batch: &[&[u32]]) -> candle_core::Result<Vec<Vec<f32>>> {
        let lengths: Vec<usize> = batch.iter().map(|tokens| tokens.len()).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let padding = self.config.padding_token;
        let padded = |tokens: &&[u32]| [tokens, &*vec![padding; longest - tokens.len()]].concat();
        let tokens: Vec<u32> = batch.iter().flat_map(padded).collect();
        let tokens = Tensor::from_vec(tokens, (batch.len(), longest), &Device::Cpu)?;
        let mask = if lengths.iter().all(|length| *length == longest) { None } else { Some(mask(&lengths, longest)?) };
        let hidden = self.model.forward(&tokens, mask.as_ref())?;
        pool(&hidden, &lengths, self.config.pooling)
    }
}

/// Returns the bias that hides padding from attention: `[texts, 1, 1, tokens]`
fn mask(lengths: &[usize], longest: usize) -> candle_core::Result<Tensor> {
    let of_text = |&length: &usize| (0..longest).map(move |at| if at < length { 0.0 } else { f32::MIN });
    let values: Vec<f32> = lengths.iter().flat_map(of_text).collect();
    Tensor::from_vec(values, (lengths.len(), 1, 1, longest), &Device::Cpu)
}

impl Embedder for Encoder {
    fn name(&self) -> &'static str {
        "candle"
    }

    fn dimensions(&self) -> usize {
        self.config.hidden
    }

    fn context(&self) -> usize {
        self.config.context
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
        let mut vectors = vec![Vec::new(); texts.len()];
        let mut computed_tokens = 0;
        for batch in batches(&lengths) {
            let together: Vec<&[u32]> = batch.iter().map(|&text| &*texts[text]).collect();
            // The mutex guards no data, so a panic leaves nothing inconsistent behind it.
            let _batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
            if request.cancellation.is_cancelled() {
                return Err(EmbedError::Abandoned { tokens: computed_tokens });
            }
            let failed = |why: String| EmbedError::Failed { why };
            let computed = self.compute(&together).map_err(|error| failed(error.to_string()))?;
            if computed.iter().flatten().any(|value| !value.is_finite()) {
                return Err(failed("it computed NaN or infinity".to_owned()));
            }
            for (text, vector) in batch.into_iter().zip(computed) {
                vectors[text] = vector;
                computed_tokens += lengths[text];
            }
        }
        Ok(Embeddings { vectors, tokens: lengths, cut_tokens })
    }
}
