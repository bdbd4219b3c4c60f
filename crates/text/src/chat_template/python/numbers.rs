//! Numbers that templates read from texts and other values.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::arguments::{bind, optional_integer, required};
use crate::chat_template::marked_text::plain;

/// The filter `int`: what is no number becomes the default.
pub(in crate::chat_template) fn int(values: &[Value]) -> Result<Value, Error> {
    let [value, default, base] = bind(values, ["value", "default", "base"])?;
    let (value, default) = (required(&value)?, default.unwrap_or_else(|| Value::from(0)));
    let base = optional_integer(&base)?.and_then(|base| u32::try_from(base).ok()).unwrap_or(10);
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let number = match value.as_str() {
        Some(text) => integer_in(&plain(text), base).map(Value::from).or_else(|| truncated(float_in(&plain(text))?)),
        None if value.is_integer() => Some(value.clone()),
        None => truncated(number(value).unwrap_or(f64::NAN)),
    };
    Ok(number.unwrap_or(default))
}

/// The filter `float`: what is no number becomes the default.
pub(in crate::chat_template) fn float(values: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind(values, ["value", "default"])?;
    let (value, default) = (required(&value)?, default.unwrap_or_else(|| Value::from(0.0)));
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let number = value.as_str().map_or_else(|| number(value), |text| float_in(&plain(text)));
    Ok(number.map_or(default, Value::from))
}

fn number(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn truncated(number: f64) -> Option<Value> {
    // Beyond that, an integer of the engine has no room.
    (number.abs() < 1e38).then(|| Value::from(number.trunc() as i128))
}

fn integer_in(text: &str, base: u32) -> Option<i64> {
    let text = text.trim();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2)];
    let with_base = prefixes.iter().find(|(prefix, of)| {
        (base == *of || base == 0) && digits.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    });
    let (digits, base) = with_base.map_or((digits, base), |(_, base)| (&digits[2..], *base));
    let base = if base == 0 { 10 } else { base };
    if !(2..=36).contains(&base) || digits.starts_with(['+', '-']) {
        return None;
    }
    let digits = without_underscores(digits)?;
    let number = i64::from_str_radix(&digits, base).ok()?;
    Some(if is_negative { -number } else { number })
}

fn float_in(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

/// Digits may be grouped, one underscore between two of them.
fn without_underscores(digits: &str) -> Option<String> {
    let is_grouped = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    is_grouped.then(|| digits.replace('_', ""))
}
