//! The model that is trained on, as its file has it: what is small is in memory, matrices stay in the file.

use std::fmt;
use std::sync::Arc;

use ruvllm_kernels::dequantize_row;
use ruvllm_kernels::ops::{Activation, RopeTable, Temperature};
use ruvllm_model::formats::gguf::{Gguf, Tensor};
use ruvllm_model::{
    AttentionConfig, Config, FeedForward, FeedForwardConfig, KvSource, LayerConfig, LoadError, Mixer, RopeConfig,
    read_config,
};
use ruvllm_runner::TokenId;

use crate::TrainError;

/// A model that adapters can be trained for.
pub struct Base {
    pub(crate) gguf: Arc<Gguf>,
    config: Config,
    pub(crate) shape: Shape,
    pub(crate) layers: Vec<Layer>,
    /// Multiplied by the scale of logits. `[hidden]`
    pub(crate) output_norm: Vec<f32>,
    output: &'static str,
}

/// Sizes that all layers have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub hidden: usize,
    pub vocabulary: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Of the feed-forward block.
    pub width: usize,
}

impl Shape {
    pub fn queries(&self) -> usize {
        self.heads * self.head_dim
    }

    pub fn keys(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Rows and columns of the matrices of a layer, by site.
    pub fn sites(&self) -> [(usize, usize); SITES] {
        let Self { hidden, width, .. } = *self;
        let queries = self.queries();
        [(queries + 2 * self.keys(), hidden), (hidden, queries), (2 * width, hidden), (hidden, width)]
    }
}

/// Matrices of a layer, after each of which something else is done.
pub(crate) const SITES: usize = 4;
pub(crate) const QKV: usize = 0;
pub(crate) const OUTPUT: usize = 1;
pub(crate) const GATE_UP: usize = 2;
pub(crate) const DOWN: usize = 3;

pub(crate) struct Layer {
    pub attention: Attention,
    pub attention_norm: Vec<f32>,
    pub attention_post_norm: Option<Vec<f32>>,
    pub feed_forward_norm: Vec<f32>,
    pub feed_forward_post_norm: Option<Vec<f32>>,
    pub activation: Activation,
    pub sites: [Site; SITES],
}

/// What happens between the projections of an attention block.
pub(crate) struct Attention {
    pub scale: f32,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    /// Norms of each head of queries and of keys.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    pub rope: Option<Arc<RopeTable>>,
    pub temperature: Option<Temperature>,
}

/// One or several tensors that are multiplied as one matrix: they stand below each other.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub parts: Vec<Part>,
    pub cols: usize,
    pub bias: Option<Vec<f32>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Its name without the layer and `.weight`.
    pub tensor: &'static str,
    pub layer: usize,
    /// Where it begins in the matrix.
    pub first_row: usize,
    pub rows: usize,
    /// Heads whose rows are rotated.
    pub rotated_heads: Option<usize>,
    /// Whether gate and up are this one tensor.
    pub is_fused: bool,
}

impl Part {
    pub fn name(&self) -> String {
        format!("blk.{}.{}.weight", self.layer, self.tensor)
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Base({}, {} layers)", self.config.architecture, self.layers.len())
    }
}

impl Base {
    /// Describes a model for items of up to `positions` tokens. Refuses layers that gradients cannot go through.
    pub fn open(gguf: Arc<Gguf>, positions: usize) -> Result<Self, TrainError> {
        let config = read_config(&gguf)?;
        if positions > config.context {
            return Err(LoadError::Context { asked: positions, model: config.context }.into());
        }
        let shape = shape(&config)?;
        let file = File { gguf: &gguf, shape };
        let mut ropes = Vec::new();
        let layers = config.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| file.layer(&config, index, layer, positions, &mut ropes));
        let layers = layers.collect::<Result<Vec<Layer>, TrainError>>()?;
        let norm = if file.has("output_norm.weight") { "output_norm.weight" } else { "token_embd_norm.weight" };
        let mut output_norm = file.floats(norm, shape.hidden)?;
        output_norm.iter_mut().for_each(|weight| *weight *= config.logit_scale);
        let output = if file.has("output.weight") { "output.weight" } else { EMBEDDING };
        for name in [output, EMBEDDING] {
            file.matrix(name, shape.vocabulary, shape.hidden)?;
        }
        Ok(Self { config, shape, layers, output_norm, output, gguf })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the digest of all of the model: its metadata and its weights.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm training base 1");
        hasher.update(self.gguf.head());
        for part in self.gguf.tensors().flat_map(|tensor| tensor.stored()) {
            hasher.update(part);
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Writes the vectors of tokens, one row each.
    pub(crate) fn embed(&self, tokens: &[TokenId], out: &mut [f32]) {
        let tensor = self.tensor(EMBEDDING);
        let (bytes, hidden) = (tensor.bytes(), self.shape.hidden);
        let row_bytes = bytes.len() / self.shape.vocabulary;
        for (token, out) in tokens.iter().zip(out.chunks_exact_mut(hidden)) {
            dequantize_row(tensor.kind, &bytes[*token as usize * row_bytes..][..row_bytes], out);
            out.iter_mut().for_each(|x| *x *= self.config.embedding_scale);
        }
    }

    /// Returns the matrix that logits come from.
    pub(crate) fn output(&self) -> Tensor<'_> {
        self.tensor(self.output)
    }

    pub(crate) fn tensor(&self, name: &str) -> Tensor<'_> {
        self.gguf.tensor(name).expect("checked when the model was opened")
    }
}

const EMBEDDING: &str = "token_embd.weight";

/// Checks that gradients can go through all layers, which must have the same sizes.
fn shape(config: &Config) -> Result<Shape, TrainError> {
    let refuse = |what| Err(TrainError::Unsupported { architecture: config.architecture.clone(), what });
    if config.layer_input_width.is_some() || config.has_output_scales {
        return refuse("inputs or scales of their own for each layer");
    }
    let mut shape = None;
    for LayerConfig { mixer, feed_forward } in &config.layers {
        let Mixer::Attention(attention) = mixer else { return refuse("recurrent layers") };
        let FeedForward::Dense(dense) = feed_forward else { return refuse("experts") };
        if attention.sinks || attention.output_gate || attention.value_norm || attention.kv_source != KvSource::Own {
            return refuse("attention sinks, gates, norms of values or shared keys");
        }
        if dense.activation == Activation::SwigluOai {
            return refuse("a bounded activation");
        }
        let AttentionConfig { heads, kv_heads, head_dim, .. } = *attention;
        let (hidden, vocabulary, width) = (config.hidden, config.vocabulary, dense.width);
        let of_layer = Shape { hidden, vocabulary, heads, kv_heads, head_dim, width };
        if *shape.get_or_insert(of_layer) != of_layer {
            return refuse("layers of different sizes");
        }
    }
    shape.map_or_else(|| refuse("no layers"), Ok)
}

/// A file whose tensors must have the shapes that they are asked for with.
struct File<'a> {
    gguf: &'a Gguf,
    shape: Shape,
}

impl File<'_> {
    fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    fn take(&self, name: &str, dims: &[usize]) -> Result<Tensor<'_>, LoadError> {
        let tensor = self.gguf.tensor(name).ok_or_else(|| LoadError::MissingTensor(name.to_owned()))?;
        if tensor.dims != dims {
            let (expected, got) = (dims.to_vec(), tensor.dims.to_vec());
            return Err(LoadError::Shape { tensor: name.to_owned(), expected, got });
        }
        Ok(tensor)
    }

    fn floats(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.take(name, &[len])?;
        let mut floats = vec![0.0; len];
        dequantize_row(tensor.kind, &tensor.bytes(), &mut floats);
        match floats.iter().position(|float| !float.is_finite()) {
            Some(index) => Err(LoadError::NotFinite { tensor: name.to_owned(), index, got: floats[index] }),
            None => Ok(floats),
        }
    }

    fn optional_floats(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, LoadError> {
        if self.has(name) { self.floats(name, len).map(Some) } else { Ok(None) }
    }

    /// Checks a matrix, whose rows must be whole blocks.
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<(), LoadError> {
        let tensor = self.take(name, &[cols, rows])?;
        if tensor.kind.row_bytes(cols).is_none() {
            let (expected, got) = (vec![cols, rows], tensor.dims.to_vec());
            return Err(LoadError::Shape { tensor: name.to_owned(), expected, got });
        }
        Ok(())
    }

    fn layer(
        &self,
        config: &Config,
        index: usize,
        LayerConfig { mixer, feed_forward }: &LayerConfig,
        positions: usize,
        ropes: &mut Vec<(RopeConfig, Arc<RopeTable>)>,
    ) -> Result<Layer, TrainError> {
        let (Mixer::Attention(attention), FeedForward::Dense(dense)) = (mixer, feed_forward) else {
            unreachable!("others were refused")
        };
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let Shape { hidden, head_dim, .. } = self.shape;
        // Some files name it by what comes before.
        let before = if self.has(&name("ffn_norm")) { "ffn_norm" } else { "post_attention_norm" };
        let post = |is_there: bool, part: &str| is_there.then(|| self.floats(&name(part), hidden)).transpose();
        let qk_norm = match attention.qk_norm {
            false => None,
            true => Some((self.floats(&name("attn_q_norm"), head_dim)?, self.floats(&name("attn_k_norm"), head_dim)?)),
        };
        Ok(Layer {
            attention: Attention {
                scale: attention.scale,
                window: attention.window,
                softcap: attention.softcap,
                qk_norm,
                rope: self.rope(config, attention, positions, ropes)?,
                temperature: attention.temperature,
            },
            attention_norm: self.floats(&name("attn_norm"), hidden)?,
            attention_post_norm: post(attention.post_norm, "post_attention_norm")?,
            feed_forward_norm: self.floats(&name(before), hidden)?,
            feed_forward_post_norm: post(dense.post_norm, "post_ffw_norm")?,
            activation: dense.activation,
            sites: self.sites(index, dense)?,
        })
    }

    /// Returns the rotations of a layer; those that rotate alike share them.
    fn rope(
        &self,
        config: &Config,
        attention: &AttentionConfig,
        positions: usize,
        ropes: &mut Vec<(RopeConfig, Arc<RopeTable>)>,
    ) -> Result<Option<Arc<RopeTable>>, LoadError> {
        let Some(rope) = &attention.rope else { return Ok(None) };
        if let Some((_, table)) = ropes.iter().find(|(known, _)| known == rope) {
            return Ok(Some(Arc::clone(table)));
        }
        // As a model is served unless it is told otherwise: for its whole context.
        let table = Arc::new(rope.table_of(self.gguf, config.context, positions)?);
        ropes.push((rope.clone(), Arc::clone(&table)));
        Ok(Some(table))
    }

    fn sites(&self, layer: usize, dense: &FeedForwardConfig) -> Result<[Site; SITES], LoadError> {
        let Shape { hidden, heads, kv_heads, .. } = self.shape;
        let (queries, keys, width) = (self.shape.queries(), self.shape.keys(), dense.width);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let qkv = if self.has(&name("attn_qkv.weight")) {
            vec![("attn_qkv", queries + 2 * keys, None, false)]
        } else {
            vec![
                ("attn_q", queries, Some(heads), false),
                ("attn_k", keys, Some(kv_heads), false),
                ("attn_v", keys, None, false),
            ]
        };
        let mut bias = None;
        if ["attn_q.bias", "attn_k.bias", "attn_v.bias"].iter().any(|part| self.has(&name(part))) {
            let mut all = self.floats(&name("attn_q.bias"), queries)?;
            all.extend(self.floats(&name("attn_k.bias"), keys)?);
            all.extend(self.floats(&name("attn_v.bias"), keys)?);
            bias = Some(all);
        }
        let gate_up = if self.has(&name("ffn_gate.weight")) {
            vec![("ffn_gate", width, None, false), ("ffn_up", width, None, false)]
        } else {
            vec![("ffn_up", 2 * width, None, true)]
        };
        let output_bias = self.optional_floats(&name("attn_output.bias"), hidden)?;
        Ok([
            self.site(layer, &qkv, hidden, bias)?,
            self.site(layer, &[("attn_output", hidden, None, false)], queries, output_bias)?,
            self.site(layer, &gate_up, hidden, None)?,
            self.site(layer, &[("ffn_down", hidden, None, false)], width, None)?,
        ])
    }

    fn site(
        &self,
        layer: usize,
        parts: &[(&'static str, usize, Option<usize>, bool)],
        cols: usize,
        bias: Option<Vec<f32>>,
    ) -> Result<Site, LoadError> {
        let mut first_row = 0;
        let mut all = Vec::with_capacity(parts.len());
        for (tensor, rows, rotated_heads, is_fused) in parts.iter().copied() {
            let part = Part { tensor, layer, first_row, rows, rotated_heads, is_fused };
            self.matrix(&part.name(), rows, cols)?;
            first_row += rows;
            all.push(part);
        }
        Ok(Site { parts: all, cols, bias })
    }
}
