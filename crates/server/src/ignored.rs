//! Parameters of a request that have no effect. What only tunes an answer is accepted and named: in the response
//! (`x-ruvllm-ignored`), in the log and in the witness entry. A strict server refuses it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::HeaderValue;
use serde_json::Value;

use crate::error::ApiError;

pub(crate) const HEADER: &str = "x-ruvllm-ignored";

/// Names that are kept of one request; the rest is counted.
pub(crate) const NAMES_MAX: usize = 24;
const NAME_CHARACTERS_MAX: usize = 64;

/// The ignored parameters of one request, collected while it is read.
#[derive(Debug, Default)]
pub struct IgnoredParams {
    is_strict: bool,
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    kept: Vec<String>,
    more: usize,
}

impl IgnoredParams {
    pub(crate) fn new(is_strict: bool) -> Self {
        Self { is_strict, names: Mutex::default() }
    }

    /// Records that a parameter has no effect. Fails if the server is strict; `why` is told to its clients.
    pub(crate) fn note(&self, name: &str, why: &str) -> Result<(), ApiError> {
        let name: String = name.chars().take(NAME_CHARACTERS_MAX).map(printable).collect();
        if self.is_strict {
            let message = format!("'{name}' is not supported: {why} (this server is strict)");
            return Err(ApiError::invalid_param(name, message).with_code("unsupported_parameter"));
        }
        let mut names = self.names();
        match names.kept.len() {
            _ if names.kept.contains(&name) => {}
            ..NAMES_MAX => names.kept.push(name),
            _ => names.more += 1,
        }
        Ok(())
    }

    /// Records a parameter whose value asks for something.
    pub(crate) fn note_given(&self, name: &str, given: Option<&Value>, why: &str) -> Result<(), ApiError> {
        match given {
            Some(value) if !asks_for_nothing(value) => self.note(name, why),
            _ => Ok(()),
        }
    }

    /// Returns the names in the order in which they were met.
    pub(crate) fn all(&self) -> Vec<String> {
        let names = self.names();
        let more = (names.more > 0).then(|| format!("{} more", names.more));
        names.kept.iter().cloned().chain(more).collect()
    }

    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let names = self.all();
        if names.is_empty() { None } else { HeaderValue::from_str(&names.join(", ")).ok() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names come from the client and go to a header and the log.
fn printable(character: char) -> char {
    if character.is_ascii_graphic() && character != ',' { character } else { '?' }
}

/// Returns whether a value is the same as leaving the parameter out.
pub(crate) fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.values().all(|value| matches!(value, Value::Null | Value::Bool(false))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_bounded_and_fit_for_a_header() {
        let ignored = IgnoredParams::default();
        assert!(ignored.header().is_none());
        ignored.note("a\nb,ü", "").unwrap();
        ignored.note("a\nb,ü", "").unwrap();
        assert_eq!(ignored.header().unwrap(), "a?b??");
        (0..1000).for_each(|number| ignored.note(&format!("{number}{}", "x".repeat(1000)), "").unwrap());
        let header = ignored.header().unwrap();
        assert!(header.len() < 2048 && header.to_str().unwrap().ends_with("977 more"), "{header:?}");
    }

    #[test]
    fn only_values_that_ask_for_something_count() {
        let ignored = IgnoredParams::default();
        for harmless in [json!(null), json!(false), json!({}), json!([]), json!({"effort": null})] {
            ignored.note_given("reasoning", Some(&harmless), "").unwrap();
        }
        assert!(ignored.all().is_empty());
        for asked in [json!(true), json!(0), json!("x"), json!([1]), json!({"effort": "low"})] {
            assert!(IgnoredParams::new(true).note_given("reasoning", Some(&asked), "").is_err(), "{asked}");
        }
    }

    #[test]
    fn a_strict_server_refuses_them_by_name() {
        let error = IgnoredParams::new(true).note("prediction", "nothing is predicted").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("prediction"));
        assert!(error.message.contains("nothing is predicted"), "{error}");
    }
}
