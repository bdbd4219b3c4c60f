//! Values of Python that are neither lists nor dictionaries, and are told apart from them by templates.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Tuple};
use minijinja::{Error, State, Value};

use super::wrong;
use crate::chat_template::operators;

/// Longest range, as in Jinja's sandbox.
const RANGE_LEN_MAX: i128 = 100_000;

/// What `keys`, `values` and `items` give: it can be iterated, has a length, and no items by number.
#[derive(Debug)]
pub(in crate::chat_template) struct View {
    dict: DynObject,
    kind: ViewKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::chat_template) enum ViewKind {
    Keys,
    Values,
    Items,
}

impl View {
    pub(super) fn of(dict: &DynObject, kind: ViewKind) -> Value {
        Value::from_object(Self { dict: dict.clone(), kind })
    }

    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            ViewKind::Keys => "dict_keys",
            ViewKind::Values => "dict_values",
            ViewKind::Items => "dict_items",
        }
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let pairs = self.dict.try_iter_pairs().into_iter().flatten();
        Enumerator::Values(match self.kind {
            ViewKind::Keys => pairs.map(|(key, _)| key).collect(),
            ViewKind::Values => pairs.map(|(_, value)| value).collect(),
            ViewKind::Items => pairs.map(|(key, value)| Value::from(Tuple::from([key, value]))).collect(),
        })
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.dict.enumerator_len()
    }
}

/// What `map`, `select` and others give: it can be iterated once, and is true even if nothing is in it.
pub(in crate::chat_template) struct Generator(Mutex<Vec<Value>>);

impl Generator {
    pub(in crate::chat_template) fn of(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items)))
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let items = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Enumerator::Values(items)
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }
}

/// What `range` gives.
#[derive(Debug)]
pub(in crate::chat_template) struct Range {
    start: i64,
    stop: i64,
    step: i64,
    len: usize,
}

impl Range {
    pub(in crate::chat_template) fn of(first: i64, second: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
        let (start, stop) = second.map_or((0, first), |second| (first, second));
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(wrong("the step of a range cannot be 0"));
        }
        let (distance, stride) = (i128::from(stop) - i128::from(start), i128::from(step));
        let len = if (distance < 0) == (step < 0) { (distance + stride - stride.signum()) / stride } else { 0 };
        if len > RANGE_LEN_MAX {
            return Err(wrong(format!("a range can have {RANGE_LEN_MAX} items, not {len}")));
        }
        Ok(Value::from_object(Self { start, stop, step, len: len as usize }))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, stop, step, .. } = self;
        match step {
            1 => write!(f, "range({start}, {stop})"),
            _ => write!(f, "range({start}, {stop}, {step})"),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.len)?;
        Some(Value::from((i128::from(self.start) + index as i128 * i128::from(self.step)) as i64))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }
}

/// A method that is looked up and not called, or called later.
pub(in crate::chat_template) struct Method {
    of: Value,
    name: String,
}

impl Method {
    pub(super) fn of(value: &Value, name: &str) -> Value {
        Value::from_object(Self { of: value.clone(), name: name.to_owned() })
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {}>", self.name)
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        operators::method(state, &self.of, &self.name, arguments)
    }
}
