//! Parts of values: `value.name`, `value[key]` and `value[start:stop:step]`, as Jinja finds them on Python's values.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::arguments::integer;
use super::objects::Method;
use super::{containers, is_generator, is_list, is_view, items, strings, wrong};
use crate::chat_template::marked_text::MarkedText;

/// What Python's type of a value has under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    Method,
    /// A method that changes the value, which the sandbox hides.
    Mutator,
}

/// Returns `value.name`. Methods go before the keys of a dictionary.
pub(in crate::chat_template) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    match attribute_of_type(value, name) {
        Some(Attribute::Method) => Ok(Method::of(value, name)),
        Some(Attribute::Mutator) => Ok(Value::UNDEFINED),
        None => value.get_attr(name),
    }
}

/// Returns `value[key]`. The keys of a dictionary go before methods.
pub(in crate::chat_template) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    let found = match value.as_str() {
        Some(text) => char_at(text, key),
        None if value.is_undefined() => return Err(Error::from(ErrorKind::UndefinedError)),
        None if is_view(value) || is_generator(value) => Value::UNDEFINED,
        None => value.get_item(key)?,
    };
    let attribute = key.as_str().filter(|_| found.is_undefined()).map(|name| attribute_of_type(value, name));
    match attribute.flatten() {
        Some(Attribute::Method) => Ok(Method::of(value, key.as_str().unwrap_or_default())),
        _ => Ok(found),
    }
}

fn char_at(text: &str, key: &Value) -> Value {
    let text = MarkedText::new(text);
    let index = integer(key).ok().and_then(|index| usize::try_from(if index < 0 { -(index + 1) } else { index }).ok());
    let found = match (index, integer(key).is_ok_and(|index| index < 0)) {
        (Some(index), false) => text.chars().nth(index),
        (Some(index), true) => text.chars().nth_back(index),
        (None, _) => None,
    };
    found.map_or(Value::UNDEFINED, Value::from)
}

/// Returns `value.name` where only what the type has counts.
pub(in crate::chat_template) fn attribute_only(value: &Value, name: &str) -> Value {
    match attribute_of_type(value, name) {
        Some(Attribute::Method) => Method::of(value, name),
        _ => Value::UNDEFINED,
    }
}

fn attribute_of_type(value: &Value, name: &str) -> Option<Attribute> {
    match value.kind() {
        ValueKind::String => strings::METHODS.contains(&name).then_some(Attribute::Method),
        _ => containers::attribute(value, name),
    }
}

/// Returns whether any type has something under a name, so that looking it up needs [`attribute`].
pub(in crate::chat_template) fn is_name_of_attribute(name: &str) -> bool {
    strings::METHODS.contains(&name) || containers::is_name_of_attribute(name)
}

/// Returns `value[start:stop:step]`.
pub(in crate::chat_template) fn slice(
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let bound = |bound: &Value| if bound.is_none() { Ok(None) } else { integer(bound).map(Some) };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(wrong("the step of a slice cannot be 0"));
    }
    if let Some(text) = value.as_str() {
        return Ok(slice_of_text(text, start, stop, step));
    }
    if !is_list(value) && !value.is_tuple() {
        return Err(wrong(format!("{} has no slices", value.kind())));
    }
    let all = items(value)?;
    let sliced: Vec<Value> = indices(all.len(), start, stop, step).map(|index| all[index].clone()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(sliced)) } else { Value::from(sliced) })
}

fn slice_of_text(text: &str, start: Option<i64>, stop: Option<i64>, step: i64) -> Value {
    let text = MarkedText::new(text);
    let places: Vec<usize> = text.plain().char_indices().map(|(at, _)| at).chain([text.plain().len()]).collect();
    let mut indices = indices(places.len() - 1, start, stop, step);
    if step == 1 {
        let Some(first) = indices.next() else { return Value::from("") };
        let last = indices.last().unwrap_or(first);
        return Value::from(text.cut(places[first]..places[last + 1]));
    }
    indices.map(|index| text.cut(places[index]..places[index + 1])).collect::<String>().into()
}

/// Returns the indices that a slice of a sequence has, in their order.
fn indices(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let len = len as i64;
    // Backwards, the place before the first item is a bound too.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: i64| (if bound < 0 { bound.saturating_add(len) } else { bound }).clamp(low, high);
    let start = start.map_or(if step > 0 { low } else { high }, place);
    let stop = stop.map_or(if step > 0 { high } else { low }, place);
    let mut at = Some(start);
    std::iter::from_fn(move || {
        let index = at.filter(|at| if step > 0 { *at < stop } else { *at > stop })?;
        at = index.checked_add(step);
        usize::try_from(index).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_have_pythons_bounds() {
        let check = |bounds: (Option<i64>, Option<i64>, i64), expect: &str| {
            let text: String =
                indices(4, bounds.0, bounds.1, bounds.2).map(|index| char::from(b'a' + index as u8)).collect();
            assert_eq!(text, expect, "{bounds:?}");
        };
        check((None, None, 1), "abcd");
        check((Some(1), Some(3), 1), "bc");
        check((Some(-2), None, 1), "cd");
        check((Some(3), Some(1), 1), "");
        check((Some(9), None, 1), "");
        check((Some(i64::MIN), Some(i64::MAX), 1), "abcd");
        check((None, None, 3), "ad");
        check((None, None, i64::MAX), "a");
        check((None, None, -1), "dcba");
        check((Some(3), Some(0), -1), "dcb");
        check((Some(0), Some(3), -1), "");
        check((None, Some(1), -2), "d");
        check((Some(-1), Some(-3), -1), "dc");
        check((None, None, i64::MIN), "d");
        assert_eq!(indices(0, None, None, -1).count(), 0);
    }

    #[test]
    fn marks_are_not_counted() {
        let text = Value::from("<\u{FDD0}b\u{FDD0}>c");
        let none = Value::from(());
        let sliced = |start: i64, stop: i64| slice(&text, &start.into(), &stop.into(), &none).unwrap();
        assert_eq!(sliced(0, 1), Value::from("<\u{FDD0}"));
        assert_eq!(sliced(1, 3), Value::from("\u{FDD0}b\u{FDD0}>"));
        assert_eq!(item(&text, &Value::from(-1)).unwrap(), Value::from("c"));
        assert_eq!(item(&text, &Value::from(2)).unwrap(), Value::from("\u{FDD0}>"));
        let backwards = slice(&text, &none, &none, &Value::from(-1)).unwrap();
        assert_eq!(backwards.as_str().unwrap().replace('\u{FDD0}', ""), "c>b<");
    }
}
