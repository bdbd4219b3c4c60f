//! Filters that go through lists and dictionaries.

use std::cmp::Ordering;
use std::collections::HashSet;

use minijinja::value::{Kwargs, Tuple};
use minijinja::{Error, State, Value};

use super::{iterated, required};
use crate::chat_template::marked_text::{count_chars, plain};
use crate::chat_template::python::arguments::{bind, integer, is_true, optional_text};
use crate::chat_template::python::compare::order;
use crate::chat_template::python::item::slice;
use crate::chat_template::python::objects::Generator;
use crate::chat_template::python::{is_dict, is_generator, wrong};
use crate::chat_template::render_budget::{ITEM_BYTES, RenderBudget};

pub(super) fn only_items(state: &mut State, values: &[Value]) -> Result<Vec<Value>, Error> {
    let [value] = bind(values, ["value"])?;
    iterated(state, required(&value)?)
}

/// Returns lists of so many items each; the last is filled up if there is something to fill it with.
pub(super) fn batches(state: &mut State, values: &[Value]) -> Result<Value, Error> {
    let [value, count, fill] = bind(values, ["value", "linecount", "fill_with"])?;
    let (items, count) = (iterated(state, required(&value)?)?, charged_count(state, required(&count)?)?);
    let mut batches: Vec<Vec<Value>> = items.chunks(count).map(<[Value]>::to_vec).collect();
    if let (Some(last), Some(fill)) = (batches.last_mut(), fill.filter(|fill| !fill.is_none())) {
        last.resize(count, fill);
    }
    Ok(Generator::of(batches.into_iter().map(Value::from).collect()))
}

/// Returns so many lists of about the same length; the shorter ones are filled up if there is something to fill them with.
pub(super) fn slices(state: &mut State, values: &[Value]) -> Result<Value, Error> {
    let [value, count, fill] = bind(values, ["value", "slices", "fill_with"])?;
    let (items, count) = (iterated(state, required(&value)?)?, charged_count(state, required(&count)?)?);
    let fill = fill.filter(|fill| !fill.is_none());
    let (shortest, longer) = (items.len() / count, items.len() % count);
    let mut items = items.into_iter();
    let slices = (0..count).map(|index| {
        let mut slice: Vec<Value> = items.by_ref().take(shortest + usize::from(index < longer)).collect();
        slice.extend(fill.clone().filter(|_| index >= longer));
        Value::from(slice)
    });
    Ok(Generator::of(slices.collect()))
}

/// Returns a number of lists or items, charged before they are there.
fn charged_count(state: &mut State, count: &Value) -> Result<usize, Error> {
    let count = usize::try_from(integer(count)?).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| wrong("there must be at least one"))?;
    RenderBudget::of(state).charge((count as u64).saturating_mul(ITEM_BYTES))?;
    Ok(count)
}

pub(super) fn length(values: &[Value]) -> Result<Value, Error> {
    let [value] = bind(values, ["obj"])?;
    let value = required(&value)?;
    let length = match value.as_str() {
        Some(text) => Some(count_chars(text)),
        None if value.is_undefined() => Some(0),
        None if is_generator(value) => None,
        None => value.len(),
    };
    length.map(Value::from).ok_or_else(|| wrong(format!("{} has no length", value.kind())))
}

pub(super) fn reversed(state: &mut State, values: &[Value]) -> Result<Value, Error> {
    let [value] = bind(values, ["value"])?;
    let value = required(&value)?;
    if value.as_str().is_some() {
        return slice(value, &Value::from(()), &Value::from(()), &Value::from(-1));
    }
    let mut items = iterated(state, value)?;
    items.reverse();
    Ok(Generator::of(items))
}

pub(super) fn pairs(values: &[Value]) -> Result<Value, Error> {
    let [value] = bind(values, ["value"])?;
    let value = required(&value)?;
    if !is_dict(value) && !value.is_undefined() {
        return Err(wrong("only mappings have pairs"));
    }
    let pairs = value.as_object().and_then(|dict| dict.try_iter_pairs()).into_iter().flatten();
    Ok(Generator::of(pairs.map(|(key, value)| Tuple::from([key, value]).into()).collect()))
}

pub(super) fn unique(state: &mut State, values: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] = bind(values, ["value", "case_sensitive", "attribute"])?;
    let items = iterated(state, required(&value)?)?;
    let keys = sort_keys(state, &items, attribute, is_true(&case_sensitive))?;
    let mut seen = HashSet::new();
    let first = keys.into_iter().zip(items).filter(|(key, _)| seen.insert(key.clone()));
    Ok(Generator::of(first.map(|(_, item)| item).collect()))
}

pub(super) fn sorted(state: &mut State, values: &[Value]) -> Result<Value, Error> {
    let [value, reverse, case_sensitive, attribute] =
        bind(values, ["value", "reverse", "case_sensitive", "attribute"])?;
    let items = iterated(state, required(&value)?)?;
    let keys = sort_keys(state, &items, attribute, is_true(&case_sensitive))?;
    in_order(keys.into_iter().zip(items).collect(), is_true(&reverse))
}

pub(super) fn sorted_pairs(values: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, by, reverse] = bind(values, ["value", "case_sensitive", "by", "reverse"])?;
    let value = required(&value)?;
    let position = match optional_text(&by)? {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(other) => return Err(wrong(format!("dictionaries are sorted by key or value, not by {other}"))),
    };
    let dict = value.as_object().filter(|_| is_dict(value)).ok_or_else(|| wrong("only mappings are sorted by keys"))?;
    let pairs = dict.try_iter_pairs().into_iter().flatten().map(|(key, value)| [key, value]);
    let keyed = pairs.map(|pair| (folded(&pair[position], is_true(&case_sensitive)), Tuple::from(pair).into()));
    in_order(keyed.collect(), is_true(&reverse))
}

/// Returns what each item is sorted by: itself, or its attributes, whose names stand between commas.
fn sort_keys(
    state: &mut State,
    items: &[Value],
    attribute: Option<Value>,
    case_sensitive: bool,
) -> Result<Vec<Value>, Error> {
    let mut columns = Vec::new();
    for name in attribute.filter(|name| !name.is_none()).iter() {
        let names =
            name.as_str().map_or_else(|| vec![name.clone()], |names| names.split(',').map(Value::from).collect());
        for name in names {
            let options = Kwargs::from_iter([("attribute", name)]);
            let column = state.apply_filter("%engine_map", &[Value::from(items.to_vec()), options.into()])?;
            columns.push(iterated(state, &column)?);
        }
    }
    let key = |(index, item): (usize, &Value)| match &columns[..] {
        [] => folded(item, case_sensitive),
        columns => columns.iter().map(|column| folded(&column[index], case_sensitive)).collect(),
    };
    Ok(items.iter().enumerate().map(key).collect())
}

/// Returns a value as it is compared: case and the guard's marks do not count.
fn folded(value: &Value, case_sensitive: bool) -> Value {
    match value.as_str().map(plain) {
        Some(text) if case_sensitive => Value::from(text),
        Some(text) => Value::from(text.to_lowercase()),
        None => value.clone(),
    }
}

/// Returns items in the order of their keys.
fn in_order(mut keyed: Vec<(Value, Value)>, is_reversed: bool) -> Result<Value, Error> {
    let mut failure = None;
    keyed.sort_by(|(left, _), (right, _)| {
        let order = order(left, right).unwrap_or_else(|error| {
            failure = Some(error);
            Ordering::Equal
        });
        if is_reversed { order.reverse() } else { order }
    });
    failure.map_or_else(|| Ok(keyed.into_iter().map(|(_, item)| item).collect()), Err)
}
