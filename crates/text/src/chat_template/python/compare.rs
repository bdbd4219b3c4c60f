//! Comparisons. Marks of the guard do not count in texts.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::{is_dict, is_list, items, wrong};
use crate::chat_template::marked_text::plain;

pub(in crate::chat_template) fn equal(left: &Value, right: &Value) -> bool {
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => left == right || plain(left) == plain(right),
        _ => left == right,
    }
}

/// Returns which of two values is the greater one; values of different kinds have no order.
pub(in crate::chat_template) fn order(left: &Value, right: &Value) -> Result<Ordering, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => return Ok(plain(left).cmp(&plain(right))),
        _ if is_number(left) && is_number(right) => return Ok(number(left).cmp(&number(right))),
        _ if !(is_list(left) && is_list(right) || left.is_tuple() && right.is_tuple()) => {}
        _ => {
            let (left, right) = (items(left)?, items(right)?);
            let different = left.iter().zip(&right).find(|(left, right)| !equal(left, right));
            return different.map_or_else(|| Ok(left.len().cmp(&right.len())), |(left, right)| order(left, right));
        }
    }
    Err(wrong(format!("{} and {} have no order", left.kind(), right.kind())))
}

/// Truth values are numbers in Python.
fn number(value: &Value) -> Value {
    bool::try_from(value.clone()).map_or_else(|_| value.clone(), |truth| Value::from(i64::from(truth)))
}

/// Returns `item in container`.
pub(in crate::chat_template) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match (container.as_str(), item.as_str()) {
        (Some(text), Some(part)) => Ok(text.contains(part) || plain(text).contains(&*plain(part))),
        (Some(_), None) => Err(wrong(format!("a string contains strings, not {}", item.kind()))),
        (None, _) if container.is_undefined() => Ok(false),
        (None, _) if is_dict(container) => Ok(container.as_object().is_some_and(|dict| dict.get_value(item).is_some())),
        (None, _) => Ok(items(container)?.iter().any(|found| equal(found, item))),
    }
}
