//! The settings in `adapter_config.json`: what scales products, and what would have to be honoured and cannot be.

use std::path::Path;

use regex::{Regex, RegexBuilder};
use ruvllm_runner::TokenId;
use serde_json::{Map, Value};

use crate::adapters::AdapterError;
use crate::formats::gguf::shortened;

/// Bytes that all compiled patterns of a setting may take, shared out among them.
const PATTERNS_BYTES_MAX: usize = 32 << 20;
/// Patterns of a setting: a merged adapter has one for each of its modules.
const PATTERNS_MAX: usize = 2048;

/// What PEFT was told when the adapter was made.
#[derive(Debug)]
pub(super) struct Config {
    rank: usize,
    pub alpha: f32,
    /// Scales by the root of the rank.
    is_rank_stabilized: bool,
    rank_pattern: Vec<(Regex, f64)>,
    alpha_pattern: Vec<(Regex, f64)>,
    pub base_model: Option<String>,
    pub invocation: Option<Vec<TokenId>>,
}

/// Settings that must be absent, null, false or empty, and what to do otherwise.
const REFUSED: [(&str, &str); 10] = [
    ("use_dora", "merge the adapter into its model, or train without it"),
    ("modules_to_save", "merge the adapter into its model, or train without it"),
    ("lora_bias", "merge the adapter into its model, or train without it"),
    ("trainable_token_indices", "merge the adapter into its model, or train without it"),
    ("target_parameters", "train on modules instead of parameters"),
    ("layer_replication", "merge the adapter into its model"),
    ("fan_in_fan_out", "models with such layers are not supported"),
    ("use_qalora", "train without it"),
    ("use_bdlora", "train without it"),
    ("arrow_config", "use one of its adapters"),
];
/// Initializations that change the base model too, so that the adapter alone says too little.
const CHANGES_BASE: [&str; 4] = ["pissa", "olora", "corda", "lora_ga"];

impl Config {
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, AdapterError> {
        let fault = |problem: String| AdapterError::File { path: path.to_owned(), problem };
        let json: Value = serde_json::from_slice(bytes).map_err(|error| fault(shortened(&error.to_string())))?;
        let Value::Object(settings) = json else { return Err(fault("it is no JSON object".to_owned())) };
        refuse(&settings)?;
        check_targets(&settings)?;
        let get = |key: &str| settings.get(key).filter(|value| !value.is_null());
        let number = |key: &str, default: f64| match get(key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| wrong(key, value, "it must be a number")),
        };
        let rank = number("r", 8.0)?;
        if rank.fract() != 0.0 || !(1.0..=f64::from(1 << 20)).contains(&rank) {
            return Err(wrong("r", &settings["r"], "it must be a whole number, at least 1"));
        }
        Ok(Self {
            rank: rank as usize,
            alpha: number("lora_alpha", 8.0)? as f32,
            is_rank_stabilized: flag(&settings, "use_rslora")?,
            rank_pattern: patterns(&settings, "rank_pattern")?,
            alpha_pattern: patterns(&settings, "alpha_pattern")?,
            base_model: get("base_model_name_or_path").and_then(Value::as_str).map(shortened),
            invocation: get("alora_invocation_tokens").map(tokens).transpose()?,
        })
    }

    /// Returns what the product of a module's matrices is multiplied by. Refuses one whose rank is not what the settings say.
    pub fn scale(&self, module: &str, rank: usize) -> Result<f32, AdapterError> {
        let find = |patterns: &[(Regex, f64)]| patterns.iter().find(|(key, _)| key.is_match(module)).map(|(_, to)| *to);
        let expected = find(&self.rank_pattern).unwrap_or(self.rank as f64);
        if expected != rank as f64 {
            let problem = format!("has rank {rank}, and adapter_config.json says {expected}");
            return Err(AdapterError::Tensor { name: shortened(module), problem });
        }
        let alpha = find(&self.alpha_pattern).unwrap_or(f64::from(self.alpha));
        let divisor = if self.is_rank_stabilized { (rank as f64).sqrt() } else { rank as f64 };
        Ok((alpha / divisor) as f32)
    }
}

fn wrong(setting: &str, got: &Value, remedy: &'static str) -> AdapterError {
    AdapterError::Setting { setting: setting.to_owned(), got: shortened(&got.to_string()), remedy }
}

fn refuse(settings: &Map<String, Value>) -> Result<(), AdapterError> {
    let kind = settings.get("peft_type").unwrap_or(&Value::Null);
    if kind != "LORA" {
        return Err(wrong("peft_type", kind, "only LORA is"));
    }
    for (key, remedy) in REFUSED {
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(values) => values.is_empty(),
            Value::Object(values) => values.is_empty(),
            _ => false,
        };
        if let Some(value) = settings.get(key).filter(|value| !is_off(value)) {
            return Err(wrong(key, value, remedy));
        }
    }
    if let Some(bias) = settings.get("bias").filter(|bias| !bias.is_null() && *bias != "none") {
        return Err(wrong("bias", bias, "train with bias=\"none\""));
    }
    let init = settings.get("init_lora_weights").unwrap_or(&Value::Null);
    if init.as_str().is_some_and(|init| CHANGES_BASE.iter().any(|known| init.starts_with(known))) {
        return Err(wrong("init_lora_weights", init, "save it as an ordinary LoRA, which PEFT can convert it to"));
    }
    Ok(())
}

/// Checks the kind of what names modules and layers. Which there are is what the file has tensors for.
fn check_targets(settings: &Map<String, Value>) -> Result<(), AdapterError> {
    let is_kind = |key: &str, is_right: fn(&Value) -> bool, remedy| match settings.get(key) {
        Some(value) if !value.is_null() && !is_right(value) => Err(wrong(key, value, remedy)),
        _ => Ok(()),
    };
    let is_texts =
        |value: &Value| value.is_string() || value.as_array().is_some_and(|all| all.iter().all(Value::is_string));
    let is_counts = |value: &Value| value.is_u64() || value.as_array().is_some_and(|all| all.iter().all(Value::is_u64));
    is_kind("target_modules", is_texts, "it must be names of modules or a pattern")?;
    is_kind("layers_to_transform", is_counts, "it must be numbers of layers")
}

fn flag(settings: &Map<String, Value>, key: &str) -> Result<bool, AdapterError> {
    match settings.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(wrong(key, other, "it must be true or false")),
    }
}

/// Reads numbers for modules whose names end with what a pattern matches.
fn patterns(settings: &Map<String, Value>, key: &str) -> Result<Vec<(Regex, f64)>, AdapterError> {
    let patterns = match settings.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(patterns)) if patterns.len() <= PATTERNS_MAX => patterns,
        Some(other) => return Err(wrong(key, other, "it must be an object of a few patterns")),
    };
    let bytes_max = PATTERNS_BYTES_MAX / patterns.len().max(1);
    let compile = |(pattern, number): (&String, &Value)| {
        let regex = RegexBuilder::new(&format!("^(.*\\.)?({pattern})$")).size_limit(bytes_max).build();
        let expected = "it must be a regular expression, and not a large one";
        let regex = regex.map_err(|_| wrong(key, &Value::from(&**pattern), expected))?;
        Ok((regex, number.as_f64().ok_or_else(|| wrong(key, number, "it must be a number"))?))
    };
    patterns.iter().map(compile).collect()
}

fn tokens(value: &Value) -> Result<Vec<TokenId>, AdapterError> {
    let token = |token: &Value| token.as_u64().and_then(|token| TokenId::try_from(token).ok());
    let tokens = value.as_array().and_then(|all| all.iter().map(token).collect::<Option<Vec<_>>>());
    tokens.ok_or_else(|| wrong("alora_invocation_tokens", value, "it must be a list of token ids"))
}
