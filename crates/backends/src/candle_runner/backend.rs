//! Candle as a backend: which models it runs, what they take, and how they are loaded.

use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_runner::{KvShape, Runner, RunnerLimits};
use ruvllm_runtime::{Backend, BackendError, BackendModel, LoadSizes};

use super::CandleRunner;
use super::architectures::{ARCHITECTURES, Architecture, Cache, Description, Shape};
use super::error::CandleError;
use super::keys::Keys;
use super::source::{TensorReader, content};
use super::tensors::{Found, find};
use crate::CANDLE;

const NAMES: [&str; ARCHITECTURES.len()] = {
    let mut names = [""; ARCHITECTURES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = ARCHITECTURES[i].name;
        i += 1;
    }
    names
};
/// Copies of the activations of a row that candle's operations have at the same time, more or less.
const COPIES: usize = 4;

/// Runs models with candle's code for their architectures.
#[derive(Clone, Copy, Debug)]
pub struct Candle;

/// A model that was checked.
#[derive(Debug)]
struct CheckedModel {
    architecture: &'static str,
    description: Description,
    weights_bytes: usize,
}

impl Backend for Candle {
    fn name(&self) -> &'static str {
        CANDLE
    }

    fn architectures(&self) -> &'static [&'static str] {
        &NAMES
    }

    fn open(&self, _: &Path, gguf: &Gguf) -> Result<Box<dyn BackendModel>, BackendError> {
        let keys = Keys::new(gguf)?;
        let description = (architecture(keys.architecture())?.describe)(&keys)?;
        let tensors = find(gguf, &description.tensors)?;
        let weights_bytes = weights_bytes(&tensors);
        let architecture = architecture(keys.architecture())?.name;
        Ok(Box::new(CheckedModel { architecture, description, weights_bytes }))
    }
}

fn architecture(name: &str) -> Result<&'static Architecture, CandleError> {
    Architecture::of(name).ok_or_else(|| CandleError::Architecture(name.to_owned()))
}

/// Returns what candle's copies of tensors take: the embedding once more as floats.
fn weights_bytes(tensors: &[Found<'_>]) -> usize {
    let embedding = tensors.iter().find(|one| one.name == "token_embd.weight").map_or(0, Found::float_bytes);
    tensors.iter().map(Found::loaded_bytes).fold(embedding, usize::saturating_add)
}

impl BackendModel for CheckedModel {
    fn vocabulary(&self) -> usize {
        self.description.shape.vocabulary
    }

    fn context(&self) -> usize {
        self.description.context
    }

    fn weights_bytes(&self) -> usize {
        self.weights_bytes
    }

    /// Candle keeps floats, which take twice as much as the half floats of a page.
    fn kv_shape(&self) -> KvShape {
        let Shape { layers, kv_heads, head_dim, .. } = self.description.shape;
        KvShape::new(2 * layers, kv_heads, head_dim)
    }

    fn state_bytes(&self, context: usize) -> usize {
        let Shape { layers, kv_heads, head_dim, .. } = self.description.shape;
        match self.description.cache {
            // A byte for each pair of tokens, at most.
            Cache::Masks => context.saturating_mul(context),
            Cache::Growing(tokens) => tokens * 2 * layers * kv_heads * head_dim * size_of::<f32>(),
        }
    }

    fn run_state_bytes(&self, context: usize, rows: usize) -> usize {
        let Shape { hidden, heads, head_dim, feed_forward, vocabulary, .. } = self.description.shape;
        // Scores, their mask and their softmax; keys and values of all heads; rotations of all positions.
        let of_context = heads.saturating_mul(COPIES * rows + 2 * head_dim).saturating_add(head_dim);
        let of_rows = (hidden + feed_forward).saturating_mul(COPIES).saturating_add(vocabulary);
        let floats = context.saturating_mul(of_context).saturating_add(rows.saturating_mul(of_rows));
        floats.saturating_mul(size_of::<f32>())
    }

    fn load(
        &self,
        gguf: &Gguf,
        LoadSizes { context, rows_max, .. }: LoadSizes,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Runner>, BackendError> {
        let most = self.description.context;
        if context > most {
            return Err(CandleError::Context { asked: context, most }.into());
        }
        let tensors = find(gguf, &self.description.tensors)?;
        let mut metadata = self.description.metadata.clone();
        // Tables of that length are made.
        metadata.push((format!("{}.context_length", self.architecture), Value::U32(context as u32)));
        let content = content(metadata, &tensors);
        let mut reader = TensorReader::new(tensors, progress);
        let model = (architecture(self.architecture)?.load)(content, &mut reader).map_err(CandleError::from)?;
        let limits = RunnerLimits {
            vocabulary: self.vocabulary(),
            context,
            hidden: 0,
            kv_shape: self.kv_shape(),
            state_bytes: self.state_bytes(context),
            drafts_max: 0,
            rows_max,
            logit_rows_max: rows_max,
            caches_prefixes: false,
            chooses_tokens: false,
            has_fast_rows: false,
            numerics: CANDLE.to_owned(),
        };
        Ok(Box::new(CandleRunner::new(model, limits)))
    }
}
