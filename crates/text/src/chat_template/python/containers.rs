//! Methods of lists, tuples and dictionaries.

use minijinja::{Error, ErrorKind, Value};

use super::arguments::{bind, optional_integer, required};
use super::compare::equal;
use super::item::Attribute;
use super::objects::{View, ViewKind};
use super::{is_dict, is_list, items, wrong};

const OF_DICTS: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const CHANGING_DICTS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const OF_LISTS: [&str; 3] = ["copy", "count", "index"];
const CHANGING_LISTS: [&str; 8] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const OF_TUPLES: [&str; 2] = ["count", "index"];

pub(super) fn is_name_of_attribute(name: &str) -> bool {
    OF_DICTS.contains(&name)
        || CHANGING_DICTS.contains(&name)
        || OF_LISTS.contains(&name)
        || CHANGING_LISTS.contains(&name)
}

pub(super) fn attribute(value: &Value, name: &str) -> Option<Attribute> {
    let (methods, mutators): (&[&str], &[&str]) = if is_dict(value) {
        (&OF_DICTS, &CHANGING_DICTS)
    } else if value.is_tuple() {
        (&OF_TUPLES, &[])
    } else if is_list(value) {
        (&OF_LISTS, &CHANGING_LISTS)
    } else {
        (&[], &[])
    };
    if methods.contains(&name) {
        return Some(Attribute::Method);
    }
    mutators.contains(&name).then_some(Attribute::Mutator)
}

/// Calls a method; an unknown one is an error of that kind.
pub(in crate::chat_template) fn call(value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    match name {
        "get" | "keys" | "values" | "items" if is_dict(value) => call_on_dict(value, name, arguments),
        "copy" if is_dict(value) || is_list(value) => bind::<0>(arguments, []).map(|_| value.clone()),
        "count" | "index" if is_list(value) || value.is_tuple() => {
            let [wanted, start, stop] = bind(arguments, ["value", "start", "stop"])?;
            let wanted = required(&wanted)?;
            let all = items(value)?;
            if name == "count" {
                return Ok(Value::from(all.iter().filter(|item| equal(item, wanted)).count()));
            }
            let place = |bound: Option<i64>, other: usize| match bound {
                Some(bound) if bound < 0 => {
                    all.len().saturating_sub(usize::try_from(bound.unsigned_abs()).unwrap_or(usize::MAX))
                }
                Some(bound) => usize::try_from(bound).unwrap_or(usize::MAX).min(all.len()),
                None => other,
            };
            let (start, stop) = (place(optional_integer(&start)?, 0), place(optional_integer(&stop)?, all.len()));
            let found = (start..stop).find(|index| equal(&all[*index], wanted));
            found.map(Value::from).ok_or_else(|| wrong("the value is not in the list"))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn call_on_dict(value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let dict = value.as_object().ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
    let view = |kind: ViewKind| bind::<0>(arguments, []).map(|_| View::of(dict, kind));
    match name {
        "keys" => view(ViewKind::Keys),
        "values" => view(ViewKind::Values),
        "items" => view(ViewKind::Items),
        _ => {
            let (key, default) = match arguments {
                [.., last] if last.is_kwargs() => return Err(wrong("get has no arguments with names")),
                [key] => (key, Value::from(())),
                [key, default] => (key, default.clone()),
                _ => return Err(wrong("get has one or two arguments")),
            };
            Ok(dict.get_value(key).unwrap_or(default))
        }
    }
}
