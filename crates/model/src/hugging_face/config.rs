//! The settings in a model's `config.json`, read and checked by key.

use serde_json::{Map, Value};

use super::HuggingFaceError;
use crate::formats::gguf::shortened;

/// What `config.json` says of the text model.
#[derive(Debug)]
pub(super) struct Settings {
    values: Map<String, Value>,
}

impl Settings {
    /// Takes the settings of the text model, where there are other parts, before those of the whole.
    pub fn new(mut whole: Map<String, Value>) -> Self {
        if let Some(Value::Object(text)) = whole.remove("text_config") {
            // The class of the whole says more than that of a part.
            whole.extend(text.into_iter().filter(|(key, _)| key != "architectures"));
        }
        Self { values: whole }
    }

    /// Returns a setting that is there and not null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    pub fn refusal(key: &str, got: &Value, problem: &'static str) -> HuggingFaceError {
        HuggingFaceError::Setting { key: key.to_owned(), got: shortened(&got.to_string()), problem }
    }

    pub fn optional_count(&self, key: &str) -> Result<Option<u32>, HuggingFaceError> {
        self.get(key).map(|value| count(key, value)).transpose()
    }

    /// Reads a count under the first of these keys that is there.
    pub fn count(&self, keys: &[&str]) -> Result<u32, HuggingFaceError> {
        for key in keys {
            if let Some(count) = self.optional_count(key)? {
                return Ok(count);
            }
        }
        Err(HuggingFaceError::MissingSetting { key: keys[0].to_owned() })
    }

    pub fn optional_float(&self, key: &str) -> Result<Option<f32>, HuggingFaceError> {
        self.get(key).map(|value| float(key, value)).transpose()
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, HuggingFaceError> {
        let wrong = |value| Self::refusal(key, value, "must be true or false");
        self.get(key).map(|value| value.as_bool().ok_or_else(|| wrong(value))).transpose()
    }

    /// Refuses a setting that is there and says something else than what can be computed.
    pub fn require(&self, key: &str, expected: &Value) -> Result<(), HuggingFaceError> {
        match self.get(key) {
            Some(got) if got != expected && got.as_f64().is_none_or(|got| Some(got) != expected.as_f64()) => {
                Err(Self::refusal(key, got, "is not supported"))
            }
            _ => Ok(()),
        }
    }

    /// Reads the kind of each layer, if they are named.
    pub fn layer_types(&self) -> Result<Option<Vec<&str>>, HuggingFaceError> {
        let key = "layer_types";
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || Self::refusal(key, value, "must be a list of names, one of each layer");
        let types: Option<Vec<&str>> = value.as_array().ok_or_else(wrong)?.iter().map(Value::as_str).collect();
        let layers = self.count(&["num_hidden_layers"])? as usize;
        types.filter(|types| types.len() == layers).map(Some).ok_or_else(wrong)
    }

    /// Returns how positions are rotated; `layers` are those that it is asked of, where they differ.
    pub fn rope(&self, layers: &str) -> Rope<'_> {
        let scaling = self.get("rope_parameters").or_else(|| self.get("rope_scaling")).and_then(Value::as_object);
        let own = scaling.and_then(|scaling| scaling.get(layers)?.as_object());
        Rope { settings: self, scaling: own.or(scaling) }
    }
}

pub(super) fn count(key: &str, value: &Value) -> Result<u32, HuggingFaceError> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| Settings::refusal(key, value, "must be a count"))
}

fn float(key: &str, value: &Value) -> Result<f32, HuggingFaceError> {
    let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
    number.ok_or_else(|| Settings::refusal(key, value, "must be a number"))
}

/// How positions are rotated: newer files say it in one place, older ones beside it.
#[derive(Clone, Copy)]
pub(super) struct Rope<'a> {
    settings: &'a Settings,
    scaling: Option<&'a Map<String, Value>>,
}

impl<'a> Rope<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.scaling.and_then(|scaling| scaling.get(key)).filter(|value| !value.is_null())
    }

    pub fn kind(&self) -> &'a str {
        self.get("rope_type").or_else(|| self.get("type")).and_then(Value::as_str).unwrap_or("default")
    }

    pub fn float(&self, key: &str) -> Result<Option<f32>, HuggingFaceError> {
        self.get(key).map(|value| float(key, value)).transpose()
    }

    pub fn required_float(&self, key: &str) -> Result<f32, HuggingFaceError> {
        self.float(key)?.ok_or_else(|| HuggingFaceError::MissingSetting { key: format!("rope_parameters.{key}") })
    }

    pub fn floats(&self, key: &str) -> Result<Vec<f32>, HuggingFaceError> {
        let missing = || HuggingFaceError::MissingSetting { key: format!("rope_parameters.{key}") };
        let value = self.get(key).ok_or_else(missing)?;
        let list = value.as_array().ok_or_else(|| Settings::refusal(key, value, "must be a list of numbers"))?;
        list.iter().map(|value| float(key, value)).collect()
    }

    /// Reads the base of the frequencies.
    pub fn base(&self) -> Result<Option<f32>, HuggingFaceError> {
        match self.float("rope_theta")? {
            Some(base) => Ok(Some(base)),
            None => self.settings.optional_float("rope_theta"),
        }
    }

    /// Reads which part of a head is rotated.
    pub fn rotated_part(&self) -> Result<Option<f32>, HuggingFaceError> {
        match self.float("partial_rotary_factor")? {
            Some(part) => Ok(Some(part)),
            None => self.settings.optional_float("partial_rotary_factor"),
        }
    }

    /// Reads the context before it was stretched.
    pub fn original_context(&self) -> Result<u32, HuggingFaceError> {
        let key = "original_max_position_embeddings";
        match self.get(key) {
            Some(value) => count(key, value),
            None => self.settings.count(&[key, "max_position_embeddings"]),
        }
    }
}
