//! The hyper-parameters of a model, read from its file and checked.

use ruvllm_kernels::ops::{HEAD_DIM_MAX, KvShape, RopeStyle};

use crate::error::LoadError;
use crate::formats::gguf::{Gguf, Metadata};

/// Dimensions and constants of a decoder of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub architecture: String,
    pub layers: usize,
    pub hidden: usize,
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    /// Tokens that the model was made for.
    pub context: usize,
    pub norm_epsilon: f32,
    pub rope_base: f64,
    /// Positions are divided by this (linear context extension).
    pub rope_divisor: f64,
    /// Elements of a head that are rotated.
    pub rope_dims: usize,
    pub rope_style: RopeStyle,
}

impl Config {
    pub fn from_gguf(gguf: &Gguf, rope_style: RopeStyle) -> Result<Self, LoadError> {
        let metadata = gguf.metadata();
        let architecture: &str = metadata.required("general.architecture")?;
        let keys = Keys { metadata, architecture };
        let (hidden, heads) = (keys.count("embedding_length")?, keys.count("attention.head_count")?);
        let kv_heads = keys.count_or("attention.head_count_kv", heads)?;
        let head_dim = keys.count_or("attention.key_length", hidden / heads)?;
        let config = Self {
            architecture: architecture.to_owned(),
            layers: keys.count("block_count")?,
            hidden,
            feed_forward: keys.count("feed_forward_length")?,
            heads,
            kv_heads,
            head_dim,
            vocabulary: gguf.tensor("token_embd.weight").and_then(|t| t.dims.get(1).copied()).unwrap_or(0),
            context: keys.count("context_length")?,
            norm_epsilon: keys.float("attention.layer_norm_rms_epsilon", None)?,
            rope_base: f64::from(keys.float("rope.freq_base", Some(10_000.0))?),
            rope_divisor: keys.rope_divisor()?,
            rope_dims: keys.count_or("rope.dimension_count", head_dim)?,
            rope_style,
        };
        config.check(&keys)?;
        Ok(config)
    }

    /// Refuses what the kernels cannot compute and what this family does not have.
    fn check(&self, keys: &Keys<'_>) -> Result<(), LoadError> {
        let refuse = |key: &str, got: usize, problem| Err(keys.refusal(key, &got.to_string(), problem));
        if !self.heads.is_multiple_of(self.kv_heads) {
            return refuse("attention.head_count_kv", self.kv_heads, "does not divide the number of heads");
        }
        if !self.head_dim.is_multiple_of(16) || self.head_dim > HEAD_DIM_MAX || self.head_dim == 0 {
            return refuse("attention.key_length", self.head_dim, "must be a multiple of 16, at most 256");
        }
        if !self.rope_dims.is_multiple_of(2) || self.rope_dims > self.head_dim {
            return refuse("rope.dimension_count", self.rope_dims, "must be even and at most the head dimension");
        }
        let value_length = keys.count_or("attention.value_length", self.head_dim)?;
        if value_length != self.head_dim {
            return refuse("attention.value_length", value_length, "differs from the key length");
        }
        match keys.metadata.optional::<usize>(&keys.name("expert_count"))? {
            Some(experts @ 1..) => refuse("expert_count", experts, "makes it a mixture of experts: not supported"),
            _ => Ok(()),
        }
    }

    pub fn kv_shape(&self) -> KvShape {
        KvShape { layers: self.layers, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }
}

/// The keys of one architecture.
struct Keys<'a> {
    metadata: Metadata<'a>,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn refusal(&self, key: &str, got: &str, problem: &'static str) -> LoadError {
        LoadError::Value { key: self.name(key), got: got.to_owned(), problem }
    }

    /// A count that must be there and at least 1.
    fn count(&self, key: &str) -> Result<usize, LoadError> {
        match self.metadata.required::<u32>(&self.name(key))? {
            0 => Err(self.refusal(key, "0", "must be at least 1")),
            count => Ok(count as usize),
        }
    }

    fn count_or(&self, key: &str, default: usize) -> Result<usize, LoadError> {
        match self.metadata.optional::<u32>(&self.name(key))? {
            Some(0) => Err(self.refusal(key, "0", "must be at least 1")),
            Some(count) => Ok(count as usize),
            None => Ok(default),
        }
    }

    fn float(&self, key: &str, default: Option<f32>) -> Result<f32, LoadError> {
        let value = match default {
            Some(default) => self.metadata.optional(&self.name(key))?.unwrap_or(default),
            None => self.metadata.required(&self.name(key))?,
        };
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.refusal(key, &value.to_string(), "must be a positive number"))
        }
    }

    fn rope_divisor(&self) -> Result<f64, LoadError> {
        let kind: Option<&str> = self.metadata.optional(&self.name("rope.scaling.type"))?;
        match kind {
            None | Some("none") => Ok(1.0),
            Some("linear") => Ok(f64::from(self.float("rope.scaling.factor", None)?)),
            Some(other) => Err(self.refusal("rope.scaling.type", other, "is not supported (known: none, linear)")),
        }
    }
}
