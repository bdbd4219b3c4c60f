//! Reads and checks the JSON files beside the weights.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::error::LoadError;

/// Far larger than any real file.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

/// Maximum length of a text whatever a file says: attention scores take memory for each pair of tokens.
const TOKENS_MAX: usize = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    Bert,
    Mpnet,
    /// RoBERTa and XLM-RoBERTa, which differ in their tokenizers only.
    Roberta,
}

/// What a model was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Turns a text into a vector.
    Embedding,
    /// Scores a pair of texts.
    Reranking,
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    Mean,
    /// The vector of the first token.
    First,
}

/// Hyper-parameters of a model, checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub architecture: Architecture,
    pub purpose: Purpose,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub inner: usize,
    pub vocabulary: usize,
    /// Number of rows of the position table.
    pub positions: usize,
    /// Number of segment types; texts have the first one.
    pub segments: usize,
    /// Number of buckets of MPNet's distances between tokens.
    pub distance_buckets: usize,
    pub padding_token: u32,
    pub norm_epsilon: f64,
    pub pooling: Pooling,
    /// Maximum length of a text in tokens.
    pub context: usize,
}

/// `config.json`, as far as it matters here.
#[derive(Debug, Deserialize)]
struct ConfigFile {
    model_type: String,
    #[serde(default)]
    architectures: Option<Vec<String>>,
    num_labels: Option<usize>,
    id2label: Option<BTreeMap<String, IgnoredAny>>,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    layer_norm_eps: f64,
    hidden_act: String,
    position_embedding_type: Option<String>,
    type_vocab_size: Option<usize>,
    relative_attention_num_buckets: Option<usize>,
    pad_token_id: Option<u32>,
}

/// `sentence_bert_config.json`
#[derive(Debug, Default, Deserialize)]
struct LengthFile {
    max_seq_length: Option<usize>,
}

/// `tokenizer_config.json`. Where there is no limit, a number that only fits a float stands for it.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfigFile {
    model_max_length: Option<f64>,
}

/// `1_Pooling/config.json`
#[derive(Debug, Default, Deserialize)]
struct PoolingFile {
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pooling_mode_max_tokens: bool,
    #[serde(default)]
    pooling_mode_mean_sqrt_len_tokens: bool,
}

impl Config {
    /// Reads the files of a model's folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, LoadError> {
        let file: ConfigFile = json(&folder.join("config.json"))?;
        let length: LengthFile = json_if_there(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
        let pooling: Option<PoolingFile> = json_if_there(&folder.join("1_Pooling/config.json"))?;
        let config = file.check()?;
        let length_max = match config.purpose {
            Purpose::Embedding => length.max_seq_length,
            Purpose::Reranking => {
                let file: Option<TokenizerConfigFile> = json_if_there(&folder.join("tokenizer_config.json"))?;
                // A cast takes what is too large as the largest number, and what is no number as 0, which is refused below.
                length.max_seq_length.or(file.and_then(|file| file.model_max_length).map(|length| length as usize))
            }
        };
        let positions = config.positions.saturating_sub(config.first_position());
        let context = length_max.unwrap_or(usize::MAX).min(positions).min(TOKENS_MAX);
        // Room for the tokens around a text, and one of its own.
        within("max_seq_length", context, 3, TOKENS_MAX)?;
        Ok(Self { context, pooling: pooling.map_or(Ok(Pooling::Mean), PoolingFile::check)?, ..config })
    }

    /// Returns the first position of a text. MPNet and RoBERTa count from the id of the padding token on.
    pub(crate) fn first_position(&self) -> usize {
        match self.architecture {
            Architecture::Bert => 0,
            Architecture::Mpnet | Architecture::Roberta => self.padding_token as usize + 1,
        }
    }
}

impl ConfigFile {
    fn check(self) -> Result<Config, LoadError> {
        let architecture = match self.model_type.as_str() {
            "bert" => Architecture::Bert,
            "mpnet" => Architecture::Mpnet,
            "roberta" | "xlm-roberta" => Architecture::Roberta,
            other => return Err(wrong("model_type", other, "bert, mpnet, roberta and xlm-roberta are supported")),
        };
        let purpose = self.purpose()?;
        if self.hidden_act != "gelu" {
            return Err(wrong("hidden_act", &self.hidden_act, "gelu is supported"));
        }
        if let Some(kind) = self.position_embedding_type.filter(|kind| kind != "absolute") {
            return Err(wrong("position_embedding_type", &kind, "absolute is supported"));
        }
        if !(self.layer_norm_eps > 0.0 && self.layer_norm_eps < 1.0) {
            return Err(wrong("layer_norm_eps", self.layer_norm_eps, "it must be between 0 and 1"));
        }
        let hidden = within("hidden_size", self.hidden_size, 1, 16_384)?;
        let heads = within("num_attention_heads", self.num_attention_heads, 1, 1024)?;
        if !hidden.is_multiple_of(heads) {
            return Err(wrong("num_attention_heads", heads, &format!("it must divide hidden_size, which is {hidden}")));
        }
        let padding_token = self.pad_token_id.unwrap_or(if architecture == Architecture::Bert { 0 } else { 1 });
        let vocabulary = within("vocab_size", self.vocab_size, 1, 4 << 20)?;
        within("pad_token_id", padding_token as usize, 0, vocabulary - 1)?;
        Ok(Config {
            architecture,
            purpose,
            hidden,
            heads,
            layers: within("num_hidden_layers", self.num_hidden_layers, 1, 512)?,
            inner: within("intermediate_size", self.intermediate_size, 1, 131_072)?,
            vocabulary,
            positions: within("max_position_embeddings", self.max_position_embeddings, 4, 1 << 20)?,
            segments: within("type_vocab_size", self.type_vocab_size.unwrap_or(2), 1, 1024)?,
            distance_buckets: within(
                "relative_attention_num_buckets",
                self.relative_attention_num_buckets.unwrap_or(32),
                8,
                1024,
            )?,
            padding_token,
            norm_epsilon: self.layer_norm_eps,
            pooling: Pooling::Mean,
            context: 0,
        })
    }
}

impl ConfigFile {
    /// Tells by the name of the head, which every published cross-encoder states. One with several labels sorts texts into
    /// classes: which of them would be the score, no file says.
    fn purpose(&self) -> Result<Purpose, LoadError> {
        let heads = self.architectures.iter().flatten();
        if !heads.into_iter().any(|name| name.ends_with("ForSequenceClassification")) {
            return Ok(Purpose::Embedding);
        }
        // Files leave out the number where it is the default of two.
        let labels = self.num_labels.or(self.id2label.as_ref().map(BTreeMap::len)).unwrap_or(2);
        if labels != 1 {
            return Err(wrong("num_labels", labels, "models that score texts, with 1 label, are supported"));
        }
        Ok(Purpose::Reranking)
    }
}

impl PoolingFile {
    fn check(self) -> Result<Pooling, LoadError> {
        let others = self.pooling_mode_max_tokens || self.pooling_mode_mean_sqrt_len_tokens;
        match (self.pooling_mode_mean_tokens, self.pooling_mode_cls_token, others) {
            (true, false, false) => Ok(Pooling::Mean),
            (false, true, false) => Ok(Pooling::First),
            _ => Err(wrong("pooling_mode", "another one", "the mean of all tokens, or the first token, is supported")),
        }
    }
}

fn within(field: &'static str, got: usize, min: usize, max: usize) -> Result<usize, LoadError> {
    if (min..=max).contains(&got) { Ok(got) } else { Err(wrong(field, got, &format!("it must be {min} to {max}"))) }
}

fn wrong(field: &'static str, got: impl ToString, wanted: &str) -> LoadError {
    // It may be megabytes of control characters.
    let got = got.to_string().chars().take(60).collect::<String>().escape_debug().to_string();
    LoadError::Field { field, got, wanted: wanted.to_owned() }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    let bytes = bounded(path, CONFIG_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| LoadError::Json { path: path.to_owned(), why: error.to_string() })
}

fn json_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    if path.exists() { json(path).map(Some) } else { Ok(None) }
}

pub(crate) fn tokenizer_bytes(path: &Path) -> Result<Vec<u8>, LoadError> {
    bounded(path, TOKENIZER_BYTES_MAX)
}

fn bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > bytes_max {
        return Err(LoadError::TooLarge { path: path.to_owned(), bytes_max });
    }
    Ok(bytes)
}
