//! Values from environment variables.

use std::env;

use super::error::ConfigError;
use super::schema::Key;
use super::secret::redacted;
use super::settings::{Origin, Setting};

/// Short names of some keys.
const SHORT: [(&str, &str); 1] = [("log_level", "RUVLLM_LOG")];

/// `RUVLLM_RUN_SEED`, or `RUVLLM_SEED`. A variable that is set but empty counts as unset.
pub(super) fn value(path: &[String], key: &Key) -> Result<Option<Setting>, ConfigError> {
    let own = [path, std::slice::from_ref(&key.name)].concat().join("_");
    let short = SHORT.iter().find(|(name, _)| *name == key.name).map(|(_, variable)| (*variable).to_owned());
    let names = [Some(variable(&own)), Some(variable(&key.name)), short];
    for name in names.into_iter().flatten() {
        let Some(text) = env::var_os(&name).filter(|text| !text.is_empty()) else { continue };
        let origin = Origin::Variable(name);
        let Ok(text) = text.into_string() else {
            let got = "bytes that are not text".to_owned();
            return Err(ConfigError::WrongType { origin, key: key.name.clone(), expected: "text", got });
        };
        let values = values(key, text, &origin)?;
        let argument = key.flag.get_id().to_string();
        return Ok(Some(Setting { key: key.name.clone(), argument, values, origin }));
    }
    Ok(None)
}

fn variable(key: &str) -> String {
    format!("RUVLLM_{}", key.replace('-', "_").to_ascii_uppercase())
}

/// Several values are written as in the file: `["a", "b"]`.
fn values(key: &Key, text: String, origin: &Origin) -> Result<Vec<String>, ConfigError> {
    let wrong = |expected| ConfigError::WrongType {
        origin: origin.clone(),
        key: key.name.clone(),
        expected,
        got: format!("'{}'", redacted(&text)),
    };
    if key.is_switch() {
        return match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(vec!["true".to_owned()]),
            "0" | "false" | "no" | "off" => Ok(vec!["false".to_owned()]),
            _ => Err(wrong("true or false")),
        };
    }
    if !(key.takes_many() && text.trim_start().starts_with('[')) {
        return Ok(vec![text]);
    }
    let table: Result<toml::Table, _> = toml::from_str(&format!("list = {text}"));
    let list = table.ok().and_then(|mut table| table.remove("list"));
    let Some(toml::Value::Array(list)) = list else { return Err(wrong("a text, or a list such as [\"a\", \"b\"]")) };
    let texts = list.into_iter().map(|value| match value {
        toml::Value::String(text) => Some(text),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        _ => None,
    });
    texts.collect::<Option<_>>().ok_or_else(|| wrong("a list of texts or numbers"))
}
