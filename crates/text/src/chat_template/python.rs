//! Python's ways with values, as far as templates rely on them and the engine has others: how values are written, compared,
//! indexed and sliced, and the methods of texts, lists and dictionaries.
//!
//! Methods that change a list or dictionary do not exist: transformers' sandbox refuses them too.

pub(super) mod arguments;
pub(super) mod compare;
pub(super) mod containers;
pub(super) mod item;
pub(super) mod numbers;
pub(super) mod objects;
pub(super) mod strings;
pub(super) mod written;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::marked_text::MarkedText;
use objects::{Generator, View};

/// What Python calls a `TypeError`, or one of its kin.
pub(super) fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Returns whether a value is a dictionary, and not one of the engine's objects that have named parts too.
pub(super) fn is_dict(value: &Value) -> bool {
    let others = ["::Namespace", "::Loop", "::Macro", "::Module"];
    value.kind() == ValueKind::Map && !others.iter().any(|name| is_of_type(value, name))
}

/// Returns whether a value is one of the engine's own objects, whose types are private.
pub(super) fn is_of_type(value: &Value, name: &str) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with(name))
}

/// Returns whether a value is a list, or something that the engine has in the place of one.
pub(super) fn is_list(value: &Value) -> bool {
    let is_sequence = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    is_sequence && !value.is_tuple() && !is_view(value) && !is_generator(value)
}

pub(super) fn is_view(value: &Value) -> bool {
    value.downcast_object_ref::<View>().is_some()
}

/// Returns whether a value can only be iterated, and only once.
pub(super) fn is_generator(value: &Value) -> bool {
    value.downcast_object_ref::<Generator>().is_some() || (value.kind() == ValueKind::Iterable && value.len().is_none())
}

/// Returns all items of what can be iterated. Undefined values have none; `None` is an error.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match value.as_str() {
        Some(text) => Ok(MarkedText::new(text).chars().map(Value::from).collect()),
        None if value.is_none() => Err(wrong("None is not iterable")),
        None => value.try_iter()?.checked().collect(),
    }
}
