//! What embedding and reranking models have in common: a tokenizer, and a transformer that computes in batches.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_core::{Device, Result, Tensor};
use ruvllm_model::formats::map::FileBytes;
use ruvllm_runtime::CancellationToken;
use ruvllm_text::Tokenizer;

use crate::architectures::Model;
use crate::batches::batches;
use crate::config::{Config, tokenizer_bytes};
use crate::error::LoadError;
use crate::weights::Weights;

#[derive(Debug)]
pub(crate) struct Trunk {
    pub config: Config,
    pub tokenizer: Tokenizer,
    model: Model,
    /// Held for a batch, which uses all cores: short requests run between the batches of long ones.
    batch: Mutex<()>,
}

/// Why not all batches were computed.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The request was cancelled after this many tokens.
    Abandoned {
        tokens: usize,
    },
    Failed {
        why: String,
    },
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Trunk {
    /// Loads the weights at `path` as `config`, which was read from their folder, says; `head` loads what else there is.
    pub(crate) fn open<H>(
        path: &Path,
        config: Config,
        head: impl FnOnce(&Weights, &Config) -> std::result::Result<H, LoadError>,
    ) -> std::result::Result<(Self, H), LoadError> {
        let tokenizer_path = folder_of(path).join("tokenizer.json");
        let tokenizer = Tokenizer::from_tokenizer_json(&tokenizer_bytes(&tokenizer_path)?);
        let tokenizer = tokenizer.map_err(|source| LoadError::Tokenizer { path: tokenizer_path, source })?;
        if tokenizer.vocab_size() > config.vocabulary {
            return Err(LoadError::TokenizerTooLarge { tokens: tokenizer.vocab_size(), vocabulary: config.vocabulary });
        }
        let bytes = FileBytes::open(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
        let weights = Weights::new(&bytes, path)?;
        let model = Model::load(&weights, &config)?;
        let head = head(&weights, &config)?;
        weights.finish()?;
        Ok((Self { config, tokenizer, model, batch: Mutex::default() }, head))
    }

    /// Computes texts of these lengths in batches: `compute` gets the indices of those in a batch. Returns a result for each
    /// text, in their order.
    pub(crate) fn in_batches<T: Default + Clone>(
        &self,
        lengths: &[usize],
        cancellation: &CancellationToken,
        compute: impl Fn(&[usize]) -> Result<Vec<T>>,
        is_sound: impl Fn(&T) -> bool,
    ) -> std::result::Result<Vec<T>, Stopped> {
        let mut results = vec![T::default(); lengths.len()];
        let mut computed_tokens = 0;
        for batch in batches(lengths) {
            // The mutex guards no data, so a panic leaves nothing inconsistent behind it.
            let _batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
            if cancellation.is_cancelled() {
                return Err(Stopped::Abandoned { tokens: computed_tokens });
            }
            let computed = compute(&batch).map_err(|error| Stopped::Failed { why: error.to_string() })?;
            if !computed.iter().all(&is_sound) {
                return Err(Stopped::Failed { why: "it computed NaN or infinity".to_owned() });
            }
            for (text, result) in batch.into_iter().zip(computed) {
                results[text] = result;
                computed_tokens += lengths[text];
            }
        }
        Ok(results)
    }

    /// Returns a vector for each token of a batch: `[texts, tokens, hidden]`. Texts without `segments` have the first one.
    pub(crate) fn forward(&self, texts: &[&[u32]], segments: Option<&[&[u32]]>) -> Result<Tensor> {
        let lengths: Vec<usize> = texts.iter().map(|tokens| tokens.len()).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let tokens = padded(texts, longest, self.config.padding_token)?;
        let segments = segments.map(|segments| padded(segments, longest, 0)).transpose()?;
        let mask = if lengths.iter().all(|length| *length == longest) { None } else { Some(mask(&lengths, longest)?) };
        self.model.forward(&tokens, segments.as_ref(), mask.as_ref())
    }
}

/// Returns `[texts, longest]`.
fn padded(texts: &[&[u32]], longest: usize, padding: u32) -> Result<Tensor> {
    let padded = |text: &&[u32]| [text, &*vec![padding; longest - text.len()]].concat();
    Tensor::from_vec(texts.iter().flat_map(padded).collect(), (texts.len(), longest), &Device::Cpu)
}

/// Returns the bias that hides padding from attention: `[texts, 1, 1, tokens]`
fn mask(lengths: &[usize], longest: usize) -> Result<Tensor> {
    let of_text = |&length: &usize| (0..longest).map(move |at| if at < length { 0.0 } else { f32::MIN });
    let values: Vec<f32> = lengths.iter().flat_map(of_text).collect();
    Tensor::from_vec(values, (lengths.len(), 1, 1, longest), &Device::Cpu)
}
