//! What a person wants to know about a model file before loading it.

use ruvllm_kernels::WeightType;

use super::{Array, Gguf, Metadata, MetadataError, Value};

/// A summary of a model file. What the file does not say is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFacts {
    pub architecture: Option<String>,
    pub name: Option<String>,
    pub license: Option<String>,
    /// The sum of all tensors' elements.
    pub parameters: u64,
    /// How the weights are stored; the type with the most bytes first.
    pub weights: Vec<WeightShare>,
    pub context_length: Option<u64>,
    pub embedding_length: Option<u64>,
    /// Elements of a key, where the file says so.
    pub key_length: Option<u64>,
    pub layers: Option<u64>,
    pub heads: Option<PerLayer>,
    /// As many as `heads` where the file does not say.
    pub kv_heads: Option<PerLayer>,
    /// As the architecture's own key says, otherwise the number of tokens.
    pub vocabulary_size: Option<u64>,
    pub chat_template: Option<String>,
    pub file_bytes: u64,
}

/// How much of a model is stored in one weight type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShare {
    pub kind: WeightType,
    pub tensors: usize,
    pub bytes: u64,
}

/// A number that most models have once and some have for each layer (a layer without attention has 0 heads).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerLayer {
    Same(u64),
    Each(Vec<u64>),
}

impl ModelFacts {
    /// Fails only where a key has a value of a type that makes no sense.
    pub fn of(file: &Gguf) -> Result<Self, MetadataError> {
        let metadata = file.metadata();
        let architecture = text(metadata, "general.architecture")?;
        let own_key = |name: &str| format!("{}.{name}", architecture.as_deref().unwrap_or_default());
        let number = |name: &str| metadata.optional::<u64>(&own_key(name));
        let heads = per_layer(metadata, &own_key("attention.head_count"))?;
        Ok(Self {
            name: text(metadata, "general.name")?,
            license: text(metadata, "general.license")?,
            parameters: file.tensors().map(|tensor| tensor.element_count() as u64).sum(),
            weights: weight_shares(file),
            context_length: number("context_length")?,
            embedding_length: number("embedding_length")?,
            key_length: number("attention.key_length")?,
            layers: number("block_count")?,
            kv_heads: per_layer(metadata, &own_key("attention.head_count_kv"))?.or_else(|| heads.clone()),
            heads,
            vocabulary_size: match number("vocab_size")? {
                Some(size) => Some(size),
                None => metadata.optional::<Array<'_>>("tokenizer.ggml.tokens")?.map(|tokens| tokens.len() as u64),
            },
            chat_template: text(metadata, "tokenizer.chat_template")?,
            file_bytes: file.size_bytes(),
            architecture,
        })
    }
}

impl ModelFacts {
    /// Bytes that the half-float keys and values of one token take, where the file says enough to tell.
    pub fn kv_bytes_per_token(&self) -> Option<u64> {
        let (PerLayer::Same(heads), PerLayer::Same(kv_heads)) = (self.heads.as_ref()?, self.kv_heads.as_ref()?) else {
            return None;
        };
        let head_dim = self.key_length.or_else(|| self.embedding_length?.checked_div(*heads))?;
        let values = self.layers?.checked_mul(*kv_heads)?.checked_mul(head_dim)?;
        values.checked_mul(2 * size_of::<u16>() as u64)
    }
}

fn text(metadata: Metadata<'_>, key: &str) -> Result<Option<String>, MetadataError> {
    Ok(metadata.optional::<&str>(key)?.map(str::to_owned))
}

fn per_layer(metadata: Metadata<'_>, key: &str) -> Result<Option<PerLayer>, MetadataError> {
    match metadata.get(key) {
        Some(Value::Array(numbers)) => {
            let expected = "an array of counts";
            let each = numbers.integers()?.map(|value| {
                let out_of_range = || MetadataError::OutOfRange { key: key.to_owned(), expected, value };
                u64::try_from(value).map_err(|_| out_of_range())
            });
            Ok(Some(PerLayer::Each(each.collect::<Result<_, _>>()?)))
        }
        _ => Ok(metadata.optional::<u64>(key)?.map(PerLayer::Same)),
    }
}

fn weight_shares(file: &Gguf) -> Vec<WeightShare> {
    let mut shares: Vec<WeightShare> = Vec::new();
    for tensor in file.tensors() {
        let position = shares.iter().position(|share| share.kind == tensor.kind).unwrap_or_else(|| {
            shares.push(WeightShare { kind: tensor.kind, tensors: 0, bytes: 0 });
            shares.len() - 1
        });
        shares[position].tensors += 1;
        shares[position].bytes += tensor.bytes_len() as u64;
    }
    shares.sort_by_key(|share| (std::cmp::Reverse(share.bytes), share.kind));
    shares
}
