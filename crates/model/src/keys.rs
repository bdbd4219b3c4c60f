//! The metadata of one architecture in a GGUF file, read and checked by key.

use ruvllm_kernels::ops::RopeStyle;

use crate::config::{AttentionConfig, RopeConfig};
use crate::error::LoadError;
use crate::formats::gguf::{Gguf, Metadata};

/// The keys that begin with the architecture's name, such as `llama.block_count`.
pub(crate) struct Keys<'a> {
    gguf: &'a Gguf,
    metadata: Metadata<'a>,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(gguf: &'a Gguf) -> Result<Self, LoadError> {
        let metadata = gguf.metadata();
        Ok(Self { gguf, metadata, architecture: metadata.required("general.architecture")? })
    }

    pub(crate) fn architecture(&self) -> &'a str {
        self.architecture
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(crate) fn refusal(&self, key: &str, got: &str, problem: &'static str) -> LoadError {
        LoadError::Value { key: self.name(key), got: got.to_owned(), problem }
    }

    /// Reads a count that must be there and at least 1.
    pub(crate) fn count(&self, key: &str) -> Result<usize, LoadError> {
        match self.metadata.required::<u32>(&self.name(key))? {
            0 => Err(self.refusal(key, "0", "must be at least 1")),
            count => Ok(count as usize),
        }
    }

    pub(crate) fn count_or(&self, key: &str, default: usize) -> Result<usize, LoadError> {
        match self.metadata.optional::<u32>(&self.name(key))? {
            Some(0) => Err(self.refusal(key, "0", "must be at least 1")),
            Some(count) => Ok(count as usize),
            None => Ok(default),
        }
    }

    pub(crate) fn positive_float(&self, key: &str, default: Option<f32>) -> Result<f32, LoadError> {
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

    /// Reads how many layers there are: no more than there are tensors for.
    pub(crate) fn layers(&self) -> Result<usize, LoadError> {
        let layers = self.count("block_count")?;
        if layers > self.gguf.tensors().count() {
            return Err(self.refusal("block_count", &layers.to_string(), "is more than the file has tensors"));
        }
        Ok(layers)
    }

    /// Returns the rows of the embedding; 0 without one, which loading then misses.
    pub(crate) fn vocabulary(&self) -> usize {
        self.gguf.tensor("token_embd.weight").and_then(|tensor| tensor.dims.get(1).copied()).unwrap_or(0)
    }

    /// Reads attention over all tokens, with nothing but rotation between projection and scores. Refuses values that
    /// differ in length from keys.
    pub(crate) fn attention(&self, style: RopeStyle) -> Result<AttentionConfig, LoadError> {
        let (hidden, heads) = (self.count("embedding_length")?, self.count("attention.head_count")?);
        let head_dim = self.count_or("attention.key_length", hidden / heads)?;
        let value_length = self.count_or("attention.value_length", head_dim)?;
        if value_length != head_dim {
            let got = value_length.to_string();
            return Err(self.refusal("attention.value_length", &got, "differs from the key length"));
        }
        Ok(AttentionConfig {
            heads,
            kv_heads: self.count_or("attention.head_count_kv", heads)?,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            rope: RopeConfig {
                base: f64::from(self.positive_float("rope.freq_base", Some(10_000.0))?),
                divisor: self.rope_divisor()?,
                dims: self.count_or("rope.dimension_count", head_dim)?,
                style,
            },
            qk_norm: false,
            post_norm: false,
        })
    }

    fn rope_divisor(&self) -> Result<f64, LoadError> {
        let kind: Option<&str> = self.metadata.optional(&self.name("rope.scaling.type"))?;
        match kind {
            None | Some("none") => Ok(1.0),
            Some("linear") => Ok(f64::from(self.positive_float("rope.scaling.factor", None)?)),
            Some(other) => Err(self.refusal("rope.scaling.type", other, "is not supported (known: none, linear)")),
        }
    }

    /// Refuses a mixture of experts.
    pub(crate) fn refuse_experts(&self) -> Result<(), LoadError> {
        match self.metadata.optional::<usize>(&self.name("expert_count"))? {
            Some(experts @ 1..) => {
                let problem = "makes it a mixture of experts: not supported";
                Err(self.refusal("expert_count", &experts.to_string(), problem))
            }
            _ => Ok(()),
        }
    }
}
