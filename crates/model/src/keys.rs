//! The metadata of one architecture in a GGUF file, read and checked by key.

use ruvllm_kernels::ops::{Activation, RopeStyle, Scoring};

use crate::config::{AttentionConfig, ExpertsConfig, KvSource};
use crate::error::LoadError;
use crate::formats::gguf::{Gguf, Metadata, Value};
use crate::rope::{LONG, LongRope, RopeConfig, RopeScaling, SHORT, Yarn};

/// Maximum number of experts of a layer: several times what is known.
const EXPERTS_MAX: usize = 4096;

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

    /// Reads how many tokens a token attends to. Files of models without a window leave it out, or say 0.
    pub(crate) fn optional_window(&self) -> Result<Option<usize>, LoadError> {
        let window = self.metadata.optional::<u32>(&self.name("attention.sliding_window"))?;
        Ok(window.filter(|window| *window > 0).map(|window| window as usize))
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

    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool, LoadError> {
        Ok(self.metadata.optional(&self.name(key))?.unwrap_or(default))
    }

    /// Reads a number that may be 0.
    fn float_or(&self, key: &str, default: f32) -> Result<f32, LoadError> {
        let value = self.metadata.optional(&self.name(key))?.unwrap_or(default);
        if value.is_finite() && value >= 0.0 {
            Ok(value)
        } else {
            Err(self.refusal(key, &value.to_string(), "must be a number that is not negative"))
        }
    }

    /// Reads a number that files leave out, or set to 0, where it has no effect.
    pub(crate) fn optional_float(&self, key: &str) -> Result<Option<f32>, LoadError> {
        Ok(Some(self.float_or(key, 0.0)?).filter(|value| *value > 0.0))
    }

    /// Reads how many layers there are: no more than there are tensors for.
    pub(crate) fn layers(&self) -> Result<usize, LoadError> {
        let blocks = self.count("block_count")?;
        if blocks > self.gguf.tensors().count() {
            return Err(self.refusal("block_count", &blocks.to_string(), "is more than the file has tensors"));
        }
        // The last ones may be for drafting several tokens at once: they are no part of the model proper.
        let key = "nextn_predict_layers";
        let drafting = self.metadata.optional::<u32>(&self.name(key))?.unwrap_or(0) as usize;
        match blocks.checked_sub(drafting) {
            Some(layers @ 1..) => Ok(layers),
            _ => Err(self.refusal(key, &drafting.to_string(), "leaves no layers")),
        }
    }

    /// Returns the rows of the embedding; 0 without one, which loading then misses.
    pub(crate) fn vocabulary(&self) -> usize {
        self.gguf.tensor("token_embd.weight").and_then(|tensor| tensor.dims.get(1).copied()).unwrap_or(0)
    }

    /// Reads attention over all tokens, with nothing but rotation between projection and scores. Refuses values that
    /// differ in length from keys.
    pub(crate) fn attention(&self, style: RopeStyle) -> Result<AttentionConfig, LoadError> {
        self.attention_with(style, self.kv_heads(self.count("attention.head_count")?)?)
    }

    /// The same with so many KV heads, for files in which they differ between layers.
    pub(crate) fn attention_with(&self, style: RopeStyle, kv_heads: usize) -> Result<AttentionConfig, LoadError> {
        let (hidden, heads) = (self.count("embedding_length")?, self.count("attention.head_count")?);
        let head_dim = self.count_or("attention.key_length", hidden / heads)?;
        let value_length = self.count_or("attention.value_length", head_dim)?;
        if value_length != head_dim {
            let got = value_length.to_string();
            return Err(self.refusal("attention.value_length", &got, "differs from the key length"));
        }
        Ok(AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            softcap: None,
            rope: Some(RopeConfig {
                base: f64::from(self.positive_float("rope.freq_base", Some(10_000.0))?),
                dims: self.count_or("rope.dimension_count", head_dim)?,
                style,
                scaling: self.rope_scaling()?,
                has_divisors: true,
            }),
            temperature: None,
            qk_norm: false,
            post_norm: false,
            sinks: false,
            output_gate: false,
            value_norm: false,
            kv_source: KvSource::Own,
        })
    }

    /// Reads how many KV heads layers have. Files of models in which some have none name them layer by layer.
    fn kv_heads(&self, heads: usize) -> Result<usize, LoadError> {
        let key = "attention.head_count_kv";
        if !matches!(self.metadata.get(&self.name(key)), Some(Value::Array(_))) {
            return self.count_or(key, heads);
        }
        let mut some = self.kv_heads_of_layers()?.into_iter().filter(|heads| *heads > 0);
        let first = some.next().ok_or_else(|| self.refusal(key, "0", "leaves no layer with attention"))?;
        match some.find(|other| *other != first) {
            Some(other) => Err(self.refusal(key, &other.to_string(), "differs between layers: not supported")),
            None => Ok(first),
        }
    }

    /// Reads how many KV heads each layer has.
    pub(crate) fn kv_heads_of_layers(&self) -> Result<Vec<usize>, LoadError> {
        self.counts_of_layers("attention.head_count_kv")
    }

    /// Reads a count for each layer, which files say once where it is the same for all.
    pub(crate) fn counts_of_layers(&self, key: &str) -> Result<Vec<usize>, LoadError> {
        let layers = self.layers()?;
        let Some(Value::Array(counts)) = self.metadata.get(&self.name(key)) else {
            return Ok(vec![self.count(key)?; layers]);
        };
        self.per_layer(key, counts.integers()?.map(|count| usize::try_from(count).unwrap_or(usize::MAX)), layers)
    }

    /// Reads a count that may be 0, and is where a file does not say it.
    pub(crate) fn optional_count(&self, key: &str) -> Result<usize, LoadError> {
        Ok(self.metadata.optional::<u32>(&self.name(key))?.unwrap_or(0) as usize)
    }

    /// Returns values of the model's layers; those of blocks behind them are left out.
    fn per_layer<T>(
        &self,
        key: &str,
        values: impl ExactSizeIterator<Item = T>,
        layers: usize,
    ) -> Result<Vec<T>, LoadError> {
        let count = values.len();
        if count == layers || count == self.count("block_count")? {
            return Ok(values.take(layers).collect());
        }
        Err(self.refusal(key, &count.to_string(), "is not a value for each layer"))
    }

    /// Reads which layers are recurrent: where a file does not say it, all but each last of some.
    pub(crate) fn recurrent_layers(&self, period: usize) -> Result<Vec<bool>, LoadError> {
        let (key, layers) = ("attention.recurrent_layers", self.layers()?);
        if let Some(Value::Array(which)) = self.metadata.get(&self.name(key)) {
            return self.per_layer(key, which.bools()?, layers);
        }
        let period = self.count_or("full_attention_interval", period)?;
        Ok((1..=layers).map(|number| !number.is_multiple_of(period)).collect())
    }

    /// Reads how a router's scores become weights: 1 is a softmax, 2 a sigmoid.
    pub(crate) fn gating_function(&self) -> Result<Option<u32>, LoadError> {
        Ok(self.metadata.optional(&self.name("expert_gating_func"))?)
    }

    /// Reads how many layers come before those with experts.
    pub(crate) fn leading_dense_layers(&self) -> Result<usize, LoadError> {
        self.optional_count("leading_dense_block_count")
    }

    fn rope_scaling(&self) -> Result<RopeScaling, LoadError> {
        let kind: Option<&str> = self.metadata.optional(&self.name("rope.scaling.type"))?;
        let factor = || self.optional_float("rope.scaling.factor").map(|factor| f64::from(factor.unwrap_or(1.0)));
        let original_context = || self.count("rope.scaling.original_context_length");
        let given_amplitude = || self.optional_float("rope.scaling.attn_factor").map(|given| given.map(f64::from));
        match kind {
            None | Some("none") if self.has_tensor(SHORT) || self.has_tensor(LONG) => {
                Ok(RopeScaling::LongRope(LongRope {
                    original_context: original_context()?,
                    amplitude: given_amplitude()?.unwrap_or(1.0),
                }))
            }
            None | Some("none") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
            Some("yarn") => {
                let factor = factor()?;
                // Some families weaken or undo the usual amplitude.
                let weakened = f64::from(self.float_or("rope.scaling.yarn_log_multiplier", 0.0)?);
                let amplitude = Yarn::usual_amplitude(factor) / (1.0 + 0.1 * weakened * factor.ln());
                Ok(RopeScaling::Yarn(Yarn {
                    factor,
                    original_context: original_context()?,
                    fast_turns: f64::from(self.positive_float("rope.scaling.yarn_beta_fast", Some(32.0))?),
                    slow_turns: f64::from(self.positive_float("rope.scaling.yarn_beta_slow", Some(1.0))?),
                    whole_pairs: true,
                    amplitude: given_amplitude()?.unwrap_or(1.0) * amplitude,
                }))
            }
            Some("longrope") => Ok(RopeScaling::LongRope(LongRope {
                original_context: original_context()?,
                amplitude: given_amplitude()?.unwrap_or(1.0),
            })),
            Some(other) => {
                let problem = "is not supported (known: none, linear, yarn, longrope)";
                Err(self.refusal("rope.scaling.type", other, problem))
            }
        }
    }

    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Reads which layers attend within a window: where a file does not say it, all but each last of `period` layers.
    pub(crate) fn windowed_layers(&self, period: usize) -> Result<Vec<bool>, LoadError> {
        let layers = self.layers()?;
        let key = "attention.sliding_window_pattern";
        let periodic = |period: usize| (1..=layers).map(|number| !number.is_multiple_of(period)).collect();
        match self.metadata.get(&self.name(key)) {
            None => Ok(periodic(period)),
            Some(Value::Array(pattern)) => self.per_layer(key, pattern.bools()?, layers),
            Some(_) => Ok(periodic(self.count(key)?)),
        }
    }

    /// Reads which layers attend within a window from a file that must say it layer by layer.
    pub(crate) fn named_windowed_layers(&self) -> Result<Vec<bool>, LoadError> {
        let key = "attention.sliding_window_pattern";
        match self.metadata.get(&self.name(key)) {
            Some(Value::Array(pattern)) => self.per_layer(key, pattern.bools()?, self.layers()?),
            _ => Err(self.refusal(key, "nothing of the kind", "must say of each layer whether it has a window")),
        }
    }

    /// Reads a mixture of experts whose router is a softmax, with weights that add up to 1.
    pub(crate) fn experts(&self, activation: Activation) -> Result<ExpertsConfig, LoadError> {
        let (experts, active) = (self.count("expert_count")?, self.count("expert_used_count")?);
        if experts > EXPERTS_MAX {
            return Err(self.refusal("expert_count", &experts.to_string(), "is more than any model has"));
        }
        if active > experts {
            return Err(self.refusal("expert_used_count", &active.to_string(), "is more than there are experts"));
        }
        let width = self.count("expert_feed_forward_length")?;
        let (scoring, scale) = (Scoring::Softmax, 1.0);
        Ok(ExpertsConfig { experts, active, width, activation, scoring, renormalize: true, scale, shared_width: None })
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
