//! Checks of keywords with plain values, so that mistakes are told with their position.

use serde_json::Value;

use super::super::limits::NUMBER_MAX;
use super::super::regex;
use super::{GrammarError, Position};

/// Returns the value as it is to be enforced.
pub(super) type Check = fn(&str, &Value, &Position) -> Result<Value, GrammarError>;

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

pub(super) fn types(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let is_good = match value {
        Value::Array(types) => !types.is_empty() && types.iter().all(is_type),
        single => is_type(single),
    };
    let problem = || format!("must be one of {} or a list of them", TYPES.join(", "));
    if is_good { Ok(value.clone()) } else { Err(position.error(keyword, problem())) }
}

pub(super) fn constant(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    match value {
        Value::Number(_) => number(keyword, value, position),
        Value::Array(items) => items.iter().map(|item| constant(keyword, item, position)).collect(),
        Value::Object(fields) => {
            let constants = fields.iter().map(|(name, value)| Ok((name.clone(), constant(keyword, value, position)?)));
            Ok(Value::Object(constants.collect::<Result<_, GrammarError>>()?))
        }
        Value::String(text) if text.contains(regex::needs_unicode_escape) => {
            Err(position.error(keyword, "has a control character, which cannot be written without \\u"))
        }
        plain => Ok(plain.clone()),
    }
}

pub(super) fn constants(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    match value {
        Value::Array(values) if !values.is_empty() => constant(keyword, value, position),
        _ => Err(position.error(keyword, "must be a non-empty array")),
    }
}

pub(super) fn names(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let is_good = value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    if is_good { Ok(value.clone()) } else { Err(position.error(keyword, "must be an array of strings")) }
}

pub(super) fn number(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let number = value.as_f64().ok_or_else(|| position.error(keyword, "must be a number"))?;
    if number.abs() > NUMBER_MAX {
        return Err(position.error(keyword, "has a number of 2^53 or beyond, which cannot be enforced exactly"));
    }
    // 1.0 and 1 are the same number, and an integer is what models write.
    let is_integer = number.fract() == 0.0;
    Ok(if is_integer { Value::from(number as i64) } else { value.clone() })
}

pub(super) fn positive_number(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let number = number(keyword, value, position)?;
    let is_good = number.as_f64().is_some_and(|number| number > 0.0);
    if is_good { Ok(number) } else { Err(position.error(keyword, "must be greater than 0")) }
}

pub(super) fn count(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let number = number(keyword, value, position)?;
    let is_good = number.as_u64().is_some_and(|count| count <= u64::from(u32::MAX));
    if is_good { Ok(number) } else { Err(position.error(keyword, "must be a whole number from 0 to 4294967295")) }
}

pub(super) fn pattern(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let pattern = value.as_str().ok_or_else(|| position.error(keyword, "must be a string"))?;
    regex::check_in_json(pattern).map_err(|error| position.error(keyword, format!("cannot be enforced: {error}")))?;
    Ok(value.clone())
}

pub(super) fn format(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let is_good = value.as_str().is_some_and(|format| FORMATS.contains(&format));
    let problem = || format!("is {value}, which cannot be enforced; known are {}", FORMATS.join(", "));
    if is_good { Ok(value.clone()) } else { Err(position.error(keyword, problem())) }
}
