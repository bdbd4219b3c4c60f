//! The description of a model: its dimensions, and what each of its layers is made of.

use ruvllm_kernels::ops::{
    Activation, DELTA_DIM_MAX, DeltaShape, HEAD_DIM_MAX, LayerState, Scoring, StateShape, TAPS_MAX, Temperature,
};
use ruvllm_runner::{KvHeads, KvShape};

use crate::error::LoadError;
use crate::keys::Keys;
use crate::rope::RopeConfig;
use crate::run_state::RowLimits;

/// Draft tokens of a sequence that a model with recurrent layers can take back.
const RECURRENT_DRAFTS_MAX: usize = 8;

/// A decoder: embedding, layers, norm, output.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub architecture: String,
    pub hidden: usize,
    pub vocabulary: usize,
    /// Tokens that the model was made for.
    pub context: usize,
    pub norm_epsilon: f32,
    /// What the vectors of tokens are multiplied by.
    pub embedding_scale: f32,
    /// What the result of a block is multiplied by before it is added to the residual stream.
    pub residual_scale: f32,
    /// What logits are multiplied by.
    pub logit_scale: f32,
    /// Logits `l` become `cap * tanh(l / cap)`.
    pub logit_softcap: Option<f32>,
    pub layers: Vec<LayerConfig>,
    /// The width of an input that each token brings for each layer, beside the residual stream.
    pub layer_input_width: Option<usize>,
    /// Whether each layer multiplies the residual stream by a number of its own in the end.
    pub has_output_scales: bool,
    /// Blocks behind them that draft several tokens at once, which we do otherwise.
    pub drafting_layers: usize,
}

/// One layer: tokens exchange information, then each goes through a feed-forward block.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    pub mixer: Mixer,
    pub feed_forward: FeedForward,
}

/// What each token goes through by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward {
    Dense(FeedForwardConfig),
    Experts(ExpertsConfig),
    /// Both, beside each other: each has norms of its own.
    DenseAndExperts(FeedForwardConfig, ExpertsConfig),
}

/// How the tokens of a sequence exchange information.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    Attention(AttentionConfig),
    ShortConv(ShortConvConfig),
    DeltaNet(DeltaNetConfig),
}

/// A gated convolution over the last tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvConfig {
    /// Tokens that it sees.
    pub taps: usize,
}

/// A gated delta net behind a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNetConfig {
    /// Tokens that the convolution sees.
    pub taps: usize,
    pub shape: DeltaShape,
}

/// Attention with grouped heads.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Maximum number of tokens that a token attends to; `None` is all before it.
    pub window: Option<usize>,
    /// Scores `s` become `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// `None` for layers without positions.
    pub rope: Option<RopeConfig>,
    /// Makes attention sharper with growing positions.
    pub temperature: Option<Temperature>,
    /// Whether queries and keys are normalized before they are rotated.
    pub qk_norm: bool,
    /// Whether the result is normalized before it is added to the residual stream.
    pub post_norm: bool,
    /// Whether each head has a score that takes part in the softmax without a value.
    pub sinks: bool,
    /// Whether each head's result is multiplied by the sigmoid of a gate, which is computed as its query is.
    pub output_gate: bool,
    /// Whether each head's values are normalized, without weights.
    pub value_norm: bool,
    pub kv_source: KvSource,
}

/// Where the keys and values of a layer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// Projections of its own.
    Own,
    /// A projection of its own: values are its result, and keys the same behind norm and rotation.
    KeysOnly,
    /// The layer with this index.
    Layer(usize),
}

/// A gated feed-forward block.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedForwardConfig {
    pub width: usize,
    pub activation: Activation,
    /// Whether the result is normalized before it is added to the residual stream.
    pub post_norm: bool,
}

/// Many gated feed-forward blocks, of which each token goes through a few.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    pub experts: usize,
    /// Experts of a token.
    pub active: usize,
    /// Of one expert.
    pub width: usize,
    pub activation: Activation,
    pub scoring: Scoring,
    /// Whether the weights of a token's experts are divided by their sum.
    pub renormalize: bool,
    /// What weights are multiplied by in the end.
    pub scale: f32,
    /// The width of an expert that every token goes through beside the others, multiplied by the sigmoid of a gate.
    pub shared_width: Option<usize>,
}

impl FeedForward {
    /// Whether its result is kept before it is added to the residual stream.
    fn keeps_result(&self) -> bool {
        match self {
            Self::Dense(dense) => dense.post_norm,
            Self::Experts(experts) => experts.shared_width.is_some(),
            Self::DenseAndExperts(..) => true,
        }
    }

    fn experts(&self) -> Option<&ExpertsConfig> {
        match self {
            Self::Dense(_) => None,
            Self::Experts(experts) | Self::DenseAndExperts(_, experts) => Some(experts),
        }
    }

    /// Returns how many numbers are kept for each row.
    fn row_numbers(&self, hidden: usize) -> usize {
        // A copy of the row for each expert, and what comes of it.
        let of_experts = |experts: &ExpertsConfig| experts.experts + experts.active * (2 * hidden + experts.width);
        match self {
            Self::Dense(dense) => dense.width,
            Self::Experts(experts) => of_experts(experts) + experts.shared_width.map_or(0, |width| width + hidden + 1),
            Self::DenseAndExperts(dense, experts) => of_experts(experts) + dense.width + 2 * hidden,
        }
    }
}

impl LayerConfig {
    /// Whether the result of a block is kept before it is added to the residual stream.
    pub(crate) fn keeps_result(&self) -> bool {
        matches!(&self.mixer, Mixer::Attention(attention) if attention.post_norm) || self.feed_forward.keeps_result()
    }
}

impl Config {
    /// Describes a model whose layers are all alike.
    pub(crate) fn uniform(keys: &Keys<'_>, layer: LayerConfig) -> Result<Self, LoadError> {
        let layers = vec![layer; keys.layers()?];
        Self::new(keys, layers)
    }

    /// Describes a model whose layers differ in their mixers only.
    pub(crate) fn with_mixers(
        keys: &Keys<'_>,
        mixers: Vec<Mixer>,
        feed_forward: &FeedForward,
    ) -> Result<Self, LoadError> {
        let layer = |mixer| LayerConfig { mixer, feed_forward: feed_forward.clone() };
        Self::new(keys, mixers.into_iter().map(layer).collect())
    }

    /// Describes a model with these layers, and refuses what the kernels cannot compute.
    pub(crate) fn new(keys: &Keys<'_>, layers: Vec<LayerConfig>) -> Result<Self, LoadError> {
        let config = Self {
            architecture: keys.architecture().to_owned(),
            hidden: keys.count("embedding_length")?,
            vocabulary: keys.vocabulary(),
            context: keys.count("context_length")?,
            norm_epsilon: keys.positive_float("attention.layer_norm_rms_epsilon", None)?,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            layer_input_width: None,
            has_output_scales: false,
            drafting_layers: keys.count("block_count")? - keys.layers()?,
            layers,
        };
        config.check(keys)?;
        Ok(config)
    }

    fn check(&self, keys: &Keys<'_>) -> Result<(), LoadError> {
        let refuse = |key: &str, got: usize, problem| Err(keys.refusal(key, &got.to_string(), problem));
        if self.kv_layers().next().is_none() {
            return refuse("attention.head_count_kv", 0, "leaves no layer with attention: not supported");
        }
        let shape = self.kv_shape();
        let first_state = self.state_shape().layers.first().copied();
        for LayerConfig { mixer, feed_forward } in &self.layers {
            match mixer {
                Mixer::Attention(attention) => {
                    check_attention(keys, attention)?;
                    // Pages have one shape for all layers that attend to all tokens, and one for the others.
                    let is_windowed = attention.window.is_some() && shape.windowed_layers > 0;
                    if attention.kv() != if is_windowed { shape.windowed_heads } else { shape.heads } {
                        let kv_heads = attention.kv_heads;
                        return refuse("attention.head_count_kv", kv_heads, "differs between layers: not supported");
                    }
                }
                Mixer::ShortConv(_) | Mixer::DeltaNet(_) => check_recurrent(keys, mixer, self.hidden)?,
            }
            if mixer.state(self.hidden).is_some_and(|state| Some(state) != first_state) {
                return refuse("block_count", self.layers.len(), "recurrent layers differ: not supported");
            }
            // Experts have one set of buffers.
            if let Some(experts) = feed_forward.experts()
                && !self.layers.iter().filter_map(|layer| layer.feed_forward.experts()).all(|other| other == experts)
            {
                let problem = "differs between layers: not supported";
                return refuse("expert_feed_forward_length", experts.width, problem);
            }
        }
        Ok(())
    }

    /// Returns the layers with attention.
    pub(crate) fn attentions(&self) -> impl Iterator<Item = &AttentionConfig> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention),
            _ => None,
        })
    }

    /// Returns those that have keys and values in the pages.
    fn kv_layers(&self) -> impl Iterator<Item = &AttentionConfig> {
        self.attentions().filter(|attention| !matches!(attention.kv_source, KvSource::Layer(_)))
    }

    pub fn kv_shape(&self) -> KvShape {
        let windows = || self.kv_layers().filter_map(|attention| attention.window);
        let first_of = |is_windowed: bool| {
            let of_kind = self.kv_layers().find(|attention| attention.window.is_some() == is_windowed);
            of_kind.or_else(|| self.kv_layers().next()).expect("checked: there is one").kv()
        };
        let KvHeads { count, dim } = first_of(false);
        let shape = KvShape::new(self.kv_layers().count(), count, dim);
        shape.with_windows(windows().count(), windows().max().unwrap_or(0)).with_windowed_heads(first_of(true))
    }

    /// Returns how many experts a token has, out of how many, in models that have any.
    pub fn active_experts(&self) -> Option<(usize, usize)> {
        let experts = self.layers.iter().find_map(|layer| layer.feed_forward.experts())?;
        Some((experts.active, experts.experts))
    }

    /// Returns what recurrent layers keep of a sequence.
    pub fn state_shape(&self) -> StateShape {
        let layers: Vec<LayerState> = self.layers.iter().filter_map(|layer| layer.mixer.state(self.hidden)).collect();
        let drafts = if layers.is_empty() { 0 } else { RECURRENT_DRAFTS_MAX };
        StateShape { layers, drafts }
    }

    /// Returns the columns of what recurrent layers are given, and of what comes of it; 0 without such layers.
    pub(crate) fn recurrent_cols(&self) -> (usize, usize) {
        let of = |mixer: &Mixer| match mixer {
            Mixer::Attention(_) => (0, 0),
            Mixer::ShortConv(_) => (3 * self.hidden, self.hidden),
            Mixer::DeltaNet(DeltaNetConfig { shape, .. }) => (shape.input(), shape.value_heads * shape.value_dim),
        };
        self.layers.iter().map(|layer| of(&layer.mixer)).max().unwrap_or((0, 0))
    }

    /// Estimates the memory of the buffers for batches of such rows, and of the tables for `context` positions.
    pub fn run_state_bytes(&self, context: usize, rows: RowLimits) -> usize {
        let attention =
            |AttentionConfig { heads, kv_heads, head_dim, .. }: &AttentionConfig| (3 * heads + 2 * kv_heads) * head_dim;
        let (recurrent_in, recurrent_out) = self.recurrent_cols();
        let mixer = self.attentions().map(attention).max().unwrap_or(0) + recurrent_in + recurrent_out;
        let feed_forward =
            self.layers.iter().map(|layer| layer.feed_forward.row_numbers(self.hidden)).max().unwrap_or(0);
        let inputs = self.layer_input_width.map_or(0, |width| (2 * self.layers.len() + 2) * width + self.hidden);
        let row = size_of::<f32>() * (3 * self.hidden + mixer + feed_forward + inputs);
        let in_bf16 = if rows.has_fast { size_of::<u16>() * (self.hidden + mixer + feed_forward + inputs) } else { 0 };
        let logits = rows.logits.saturating_mul(size_of::<f32>() * self.vocabulary);
        let dims: usize = self.ropes().iter().map(|rope| rope.dims).sum();
        let positions = context.saturating_mul(dims).saturating_mul(size_of::<f32>());
        rows.all.saturating_mul(row + in_bf16).saturating_add(logits).saturating_add(positions)
    }

    /// Returns the ways in which layers rotate: those that rotate alike share a table.
    pub(crate) fn ropes(&self) -> Vec<&RopeConfig> {
        let mut ropes = Vec::new();
        for rope in self.attentions().filter_map(|attention| attention.rope.as_ref()) {
            if !ropes.contains(&rope) {
                ropes.push(rope);
            }
        }
        ropes
    }

    /// Returns what pages depend on beside the file and their formats, empty for most models.
    pub(crate) fn numerics(&self, context: usize) -> String {
        let rope = self.ropes().iter().find_map(|rope| rope.variant(context));
        // Pages in which those layers came in their own order.
        let order = (self.kv_shape().windowed_layers > 0).then_some("windows last");
        rope.into_iter().chain(order).collect::<Vec<&str>>().join(", ")
    }
}

impl AttentionConfig {
    fn kv(&self) -> KvHeads {
        KvHeads { count: self.kv_heads, dim: self.head_dim }
    }
}

impl Mixer {
    /// Returns what it keeps of a sequence beside keys and values.
    fn state(&self, hidden: usize) -> Option<LayerState> {
        match self {
            Self::Attention(_) => None,
            Self::ShortConv(conv) => Some(LayerState { channels: hidden, taps: conv.taps, delta: None }),
            Self::DeltaNet(DeltaNetConfig { taps, shape }) => {
                Some(LayerState { channels: shape.qkv(), taps: *taps, delta: Some(*shape) })
            }
        }
    }
}

fn check_attention(keys: &Keys<'_>, attention: &AttentionConfig) -> Result<(), LoadError> {
    let refuse = |key: &str, got: usize, problem| Err(keys.refusal(key, &got.to_string(), problem));
    let AttentionConfig { heads, kv_heads, head_dim, rope, .. } = attention;
    if !heads.is_multiple_of(*kv_heads) {
        return refuse("attention.head_count_kv", *kv_heads, "does not divide the number of heads");
    }
    if !head_dim.is_multiple_of(16) || *head_dim > HEAD_DIM_MAX || *head_dim == 0 {
        return refuse("attention.key_length", *head_dim, "must be a multiple of 16, at most 512");
    }
    if !attention.scale.is_finite() {
        return refuse("attention.head_count", *heads, "is more than the residual stream has columns");
    }
    let dims = rope.as_ref().map_or(0, |rope| rope.dims);
    if !dims.is_multiple_of(2) || dims > *head_dim {
        return refuse("rope.dimension_count", dims, "must be even and at most the head dimension");
    }
    Ok(())
}

fn check_recurrent(keys: &Keys<'_>, mixer: &Mixer, hidden: usize) -> Result<(), LoadError> {
    let refuse = |key: &str, got: usize, problem| Err(keys.refusal(key, &got.to_string(), problem));
    match mixer {
        Mixer::Attention(_) => Ok(()),
        Mixer::ShortConv(ShortConvConfig { taps }) if *taps > TAPS_MAX => {
            refuse("shortconv.l_cache", *taps, "is more than 8")
        }
        Mixer::ShortConv(_) if !hidden.is_multiple_of(32) => {
            refuse("embedding_length", hidden, "must be a multiple of 32")
        }
        Mixer::ShortConv(_) => Ok(()),
        Mixer::DeltaNet(DeltaNetConfig { taps, .. }) if *taps > TAPS_MAX => {
            refuse("ssm.conv_kernel", *taps, "is more than 8")
        }
        Mixer::DeltaNet(DeltaNetConfig { shape, .. }) => {
            let DeltaShape { key_heads, value_heads, key_dim, value_dim } = *shape;
            let is_dim = |dim: usize| dim.is_multiple_of(16) && (1..=DELTA_DIM_MAX).contains(&dim);
            if !is_dim(key_dim) {
                return refuse("ssm.state_size", key_dim, "must be a multiple of 16, at most 256");
            }
            if !is_dim(value_dim) || !(value_heads * value_dim).is_multiple_of(32) {
                let problem = "must give heads of a multiple of 16, at most 256";
                return refuse("ssm.inner_size", value_heads * value_dim, problem);
            }
            if !value_heads.is_multiple_of(key_heads) {
                return refuse("ssm.group_count", key_heads, "does not divide the number of value heads");
            }
            Ok(())
        }
    }
}
