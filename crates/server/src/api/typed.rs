//! JSON objects with a `type`.
//!
//! Serde can distinguish them too, but then it neither names the invalid field nor says why a type is not supported.

use serde::Deserialize;
use serde::de::value::MapDeserializer;
use serde_json::{Map, Value};

use crate::body;
use crate::error::ApiError;
use crate::ignored::{IgnoredParams, asks_for_nothing};

/// An object of a request, and its path there.
#[derive(Debug)]
pub(crate) struct Typed<'v> {
    pub kind: Option<&'v str>,
    pub place: String,
    fields: &'v Map<String, Value>,
    ignored: &'v IgnoredParams,
}

/// A text or a list.
#[derive(Debug)]
pub(crate) enum TextOrList<'v> {
    Text(&'v str),
    List(Vec<Typed<'v>>),
}

impl<'v> Typed<'v> {
    pub(crate) fn new(value: &'v Value, place: String, ignored: &'v IgnoredParams) -> Result<Self, ApiError> {
        let Value::Object(fields) = value else {
            return Err(wrong_type(&place, "an object", value));
        };
        let kind = match fields.get("type") {
            None | Some(Value::Null) => None,
            Some(Value::String(kind)) => Some(kind.as_str()),
            Some(other) => return Err(wrong_type(&format!("{place}.type"), "a text", other)),
        };
        Ok(Self { kind, place, fields, ignored })
    }

    pub(crate) fn list(values: &'v [Value], place: &str, ignored: &'v IgnoredParams) -> Result<Vec<Self>, ApiError> {
        let one = |(index, value)| Self::new(value, format!("{place}[{index}]"), ignored);
        values.iter().enumerate().map(one).collect()
    }

    pub(crate) fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// Parses all fields but the type.
    pub(crate) fn read<T: Deserialize<'v>>(&self) -> Result<T, ApiError> {
        let fields = self.fields.iter().filter(|(name, _)| *name != "type");
        let fields = MapDeserializer::new(fields.map(|(name, value)| (name.as_str(), value)));
        body::read(fields, &self.place, self.ignored)
    }

    /// Notes that the whole object has no effect.
    pub(crate) fn ignore(&self, why: &str) -> Result<(), ApiError> {
        let kind: String = self.kind.unwrap_or("no type").chars().take(64).collect();
        self.ignored.note(&format!("{}:{kind}", self.place), why)
    }

    /// Names the invalid field in errors.
    pub(crate) fn wrong(&self, field: &str, message: impl Into<String>) -> ApiError {
        ApiError::invalid_param(format!("{}.{field}", self.place), message)
    }

    /// Returns the error for a type that is not one of `known`, which are `what`.
    pub(crate) fn unsupported(&self, what: &str, known: &str) -> ApiError {
        match self.kind {
            Some(kind) => {
                let kind: String = kind.chars().take(64).collect();
                self.wrong("type", format!("{what} of the type {kind:?} are not supported; supported: {known}"))
            }
            None => self
                .wrong("type", format!("{what} need a type; supported: {known}"))
                .with_code("missing_required_parameter"),
        }
    }
}

impl<'v> TextOrList<'v> {
    pub(crate) fn new(value: &'v Value, place: &str, ignored: &'v IgnoredParams) -> Result<Self, ApiError> {
        match value {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(values) => Ok(Self::List(Typed::list(values, place, ignored)?)),
            other => Err(wrong_type(place, "a text or a list", other)),
        }
    }
}

fn wrong_type(place: &str, expected: &str, got: &Value) -> ApiError {
    let got = match got {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    ApiError::invalid_param(place, format!("'{place}' is {got}; expected {expected}")).with_code("invalid_type")
}

/// Refuses a field without which the answer would mean something else, unless its value asks for nothing.
pub(crate) fn refuse(field: &str, given: Option<&Value>, why: &str) -> Result<(), ApiError> {
    match given {
        Some(value) if !asks_for_nothing(value) => {
            Err(ApiError::invalid_param(field, format!("{field} is not supported: {why}"))
                .with_code("unsupported_parameter"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Call {
        name: String,
        size: Option<usize>,
    }

    fn check(value: &Value, param: &str, code: &str) {
        let ignored = IgnoredParams::default();
        let typed = Typed::new(value, "input[3]".to_owned(), &ignored);
        let error = typed.and_then(|typed| typed.read::<Call>()).expect_err("wrong");
        assert_eq!((error.param.as_deref(), error.code.as_deref()), (Some(param), Some(code)), "{error:?}");
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place_in_the_whole_body() {
        let good = json!({"type": "call", "name": "f"});
        let ignored = IgnoredParams::default();
        let typed = Typed::new(&good, "input[3]".to_owned(), &ignored).unwrap();
        assert_eq!(typed.kind, Some("call"));
        assert_eq!(typed.read::<Call>().unwrap(), Call { name: "f".to_owned(), size: None });
        check(&json!({"type": "call"}), "input[3].name", "missing_required_parameter");
        check(&json!({"type": "call", "name": "f", "siez": 1}), "input[3].siez", "unknown_parameter");
        check(&json!({"type": "call", "name": "f", "size": "x"}), "input[3].size", "invalid_type");
        check(&json!({"type": 7}), "input[3].type", "invalid_type");
        check(&json!("call"), "input[3]", "invalid_type");
    }
}
