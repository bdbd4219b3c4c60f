//! Checks of keywords with plain values, so that mistakes are told with their position.

use serde_json::{Map, Value, json};

use super::super::limits::NUMBER_MAX;
use super::super::regex;
use super::written::Written;
use super::{GrammarError, Position, Rewriter};

/// Returns the value as it is to be enforced.
pub(super) type Check = fn(&str, &Value, &Position) -> Result<Value, GrammarError>;

/// Digits of a number whose multiples are enforced.
const DIGITS_MAX: usize = 9;
/// The automaton has a state for every remainder.
const MULTIPLE_MAX: u64 = 100_000;
pub(super) const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

impl Rewriter<'_> {
    /// A keyword with a plain value that was checked.
    pub(super) fn literal(
        &mut self,
        keyword: &str,
        checked: Result<Value, GrammarError>,
        value: &Value,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        match checked {
            Ok(value) => {
                written.cost = written.cost.with_literal(keyword, &value);
                written.set(keyword, value);
                Ok(())
            }
            Err(error @ GrammarError::NotEnforceable { .. }) => {
                self.relax(error)?;
                // At least a value of the same type.
                match (keyword, value) {
                    ("const", value) => written.conjuncts.push(json!({ "type": type_of(value) })),
                    ("enum", Value::Array(values)) => {
                        let mut types: Vec<&str> = values.iter().map(type_of).collect();
                        types.sort_unstable();
                        types.dedup();
                        written.conjuncts.push(json!({ "type": types }));
                    }
                    _ => {}
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// `exclusiveMinimum` and `exclusiveMaximum`; in draft 04, they tell how `minimum` and `maximum` are meant.
    pub(super) fn limit(
        &mut self,
        keyword: &str,
        value: &Value,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let plain = if keyword == "exclusiveMinimum" { "minimum" } else { "maximum" };
        let value = match (value, fields.get(plain)) {
            (Value::Bool(true), Some(limit)) => limit,
            (Value::Bool(_), _) => return Ok(()),
            (value, _) => value,
        };
        self.literal(keyword, number(keyword, value, position), value, written)
    }

    /// Integers that are multiples of 0.3 are multiples of 3.
    pub(super) fn multiple_of(
        &mut self,
        value: &Value,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let is_integer = fields.get("type").is_some_and(|kind| kind == "integer");
        let of_integers = if is_integer { whole_multiple(value) } else { None };
        let checked = positive_number("multipleOf", &of_integers.unwrap_or_else(|| value.clone()), position);
        self.literal("multipleOf", checked, value, written)
    }
}

/// Returns the least whole number that is a multiple of this one, unless it is large.
fn whole_multiple(value: &Value) -> Option<Value> {
    let text = value.as_number()?.to_string();
    let (whole, fraction) = text.split_once('.')?;
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    let mut rest = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let mut divisor = digits;
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    digits.checked_div(divisor).filter(|multiple| *multiple <= MULTIPLE_MAX).map(Value::from)
}

pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

pub(super) fn types(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let is_good = match value {
        Value::Array(types) => !types.is_empty() && types.iter().all(is_type),
        single => is_type(single),
    };
    let problem = || format!("must be one of {} or a list of them", TYPES.join(", "));
    match value {
        _ if !is_good => Err(position.wrong(keyword, problem())),
        Value::Array(types) if types.len() == 1 => Ok(types[0].clone()),
        value => Ok(value.clone()),
    }
}

pub(super) fn constant(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    match value {
        Value::Number(_) if is_exact_beyond(value) => Ok(value.clone()),
        Value::Number(_) => number(keyword, value, position),
        Value::Array(items) => items.iter().map(|item| constant(keyword, item, position)).collect(),
        Value::Object(fields) => {
            let constants = fields.iter().map(|(name, value)| Ok((name.clone(), constant(keyword, value, position)?)));
            Ok(Value::Object(constants.collect::<Result<_, GrammarError>>()?))
        }
        Value::String(text) if text.contains(regex::needs_unicode_escape) => {
            Err(position.unenforceable(keyword, "has a control character, which cannot be written without \\u"))
        }
        plain => Ok(plain.clone()),
    }
}

/// Whether an integer is too large to be calculated with, but is the same as a float.
fn is_exact_beyond(value: &Value) -> bool {
    let Some(integer) = value.as_i64() else { return false };
    (integer as f64).abs() > NUMBER_MAX && integer as f64 as i128 == i128::from(integer)
}

pub(super) fn constants(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    match value {
        Value::Array(values) if !values.is_empty() => constant(keyword, value, position),
        _ => Err(position.wrong(keyword, "must be a non-empty array")),
    }
}

pub(super) fn names(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let is_good = value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    if is_good { Ok(value.clone()) } else { Err(position.wrong(keyword, "must be an array of strings")) }
}

pub(super) fn number(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let number = value.as_f64().ok_or_else(|| position.wrong(keyword, "must be a number"))?;
    if number.abs() > NUMBER_MAX {
        let problem = "has a number of 2^53 or beyond, which cannot be enforced exactly";
        return Err(position.unenforceable(keyword, problem));
    }
    // 1.0 and 1 are the same number, and an integer is what models write.
    let is_integer = number.fract() == 0.0;
    Ok(if is_integer { Value::from(number as i64) } else { value.clone() })
}

pub(super) fn positive_number(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let number = number(keyword, value, position)?;
    let digits = number.to_string().bytes().filter(u8::is_ascii_digit).count();
    match number.as_f64() {
        Some(positive) if positive > 0.0 && digits <= DIGITS_MAX => Ok(number),
        Some(positive) if positive > 0.0 => Err(position.unenforceable(keyword, "has too many digits to be enforced")),
        _ => Err(position.wrong(keyword, "must be greater than 0")),
    }
}

pub(super) fn count(keyword: &str, value: &Value, position: &Position) -> Result<Value, GrammarError> {
    let number = number(keyword, value, position)?;
    match number.as_u64() {
        Some(count) if count <= u64::from(u32::MAX) => Ok(number),
        Some(_) => Err(position.unenforceable(keyword, "must be at most 4294967295 to be enforced")),
        None => Err(position.wrong(keyword, "must be a whole number from 0 to 4294967295")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_among_integers_are_whole() {
        assert_eq!(whole_multiple(&json!(0.3)), Some(json!(3)));
        assert_eq!(whole_multiple(&json!(2.5)), Some(json!(5)));
        assert_eq!(whole_multiple(&json!(0.123456789)), None);
        assert_eq!(whole_multiple(&json!(3)), None);
        assert_eq!(whole_multiple(&json!(-0.5)), None);
    }

    #[test]
    fn large_constants_are_kept_if_they_are_exact() {
        assert!(is_exact_beyond(&json!(9_007_199_254_740_992_i64)) && is_exact_beyond(&json!(i64::MIN)));
        assert!(!is_exact_beyond(&json!(9_007_199_254_740_993_i64)) && !is_exact_beyond(&json!(i64::MAX)));
        assert!(!is_exact_beyond(&json!(7)) && !is_exact_beyond(&json!(1.5)));
    }
}
