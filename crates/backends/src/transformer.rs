//! The layers that BERT and MPNet have in common.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::{LayerNorm, Linear, ops};

use crate::config::Config;
use crate::error::LoadError;
use crate::gelu::Gelu;
use crate::weights::Weights;

type Loaded<T> = std::result::Result<T, LoadError>;

/// Names of a layer's tensors.
pub(crate) struct LayerNames {
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub attention_output: &'static str,
    pub attention_norm: &'static str,
}

/// Attention and a feed-forward network, each with a residual and a norm.
#[derive(Debug)]
pub(crate) struct Layer {
    query_key_value: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    output_norm: LayerNorm,
    heads: usize,
}

impl Layer {
    /// Loads all layers of a model.
    pub(crate) fn load_all(weights: &Weights, config: &Config, names: &LayerNames) -> Loaded<Vec<Self>> {
        (0..config.layers).map(|index| Self::load(weights, config, names, index)).collect()
    }

    fn load(weights: &Weights, config: &Config, names: &LayerNames, index: usize) -> Loaded<Self> {
        let at = |name: &str| format!("encoder.layer.{index}.{name}");
        let (hidden, inner) = (config.hidden, config.inner);
        Ok(Self {
            query_key_value: weights.joined(&[names.query, names.key, names.value].map(at), hidden, hidden)?,
            attention_output: weights.linear(&at(names.attention_output), hidden, hidden)?,
            attention_norm: weights.norm(&at(names.attention_norm), hidden, config.norm_epsilon)?,
            up: weights.linear(&at("intermediate.dense"), hidden, inner)?,
            down: weights.linear(&at("output.dense"), inner, hidden)?,
            output_norm: weights.norm(&at("output.LayerNorm"), hidden, config.norm_epsilon)?,
            heads: config.heads,
        })
    }

    /// Computes the layer. `x` is `[texts, tokens, hidden]`. `bias` is added to the scores, `[texts or 1, heads or 1, tokens or 1, tokens]`.
    pub(crate) fn forward(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let attended = self.attention_output.forward(&self.attention(x, bias)?)?;
        let x = self.attention_norm.forward(&(x + attended)?)?;
        let inner = self.up.forward(&x)?.apply_op1_no_bwd(&Gelu)?;
        self.output_norm.forward(&(&x + self.down.forward(&inner)?)?)
    }

    fn attention(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let (texts, tokens, hidden) = x.dims3()?;
        let head = hidden / self.heads;
        let all = self.query_key_value.forward(x)?.reshape((texts, tokens, 3, self.heads, head))?;
        // [texts, heads, tokens, head]
        let part = |index: usize| all.narrow(2, index, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        let query = (part(0)? / (head as f64).sqrt())?;
        let scores = query.matmul(&part(1)?.transpose(D::Minus1, D::Minus2)?)?;
        let scores = match bias {
            Some(bias) => scores.broadcast_add(bias)?,
            None => scores,
        };
        let mixed = ops::softmax_last_dim(&scores)?.matmul(&part(2)?)?;
        mixed.transpose(1, 2)?.contiguous()?.reshape((texts, tokens, hidden))
    }
}
