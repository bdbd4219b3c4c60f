//! Jinja's filters, where the engine's would give something else or build values without being metered.

mod lists;

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters as engine};

use super::json;
use super::python::arguments::{bind, integer, is_true, optional_integer, optional_text, required, text};
use super::python::item::attribute_only;
use super::python::objects::Generator;
use super::python::strings::{capitalized, is_space, lines, replaced, stripped, titled};
use super::python::written::write_str;
use super::python::{items, numbers, wrong};
use super::render_budget::{ITEM_BYTES, RenderBudget, Texts};
use super::writing::written;
use lists::{batches, length, only_items, pairs, reversed, slices, sorted, sorted_pairs, unique};

type Filter = fn(&mut State, &[Value]) -> Result<Value, Error>;

/// Filters that write values out.
const WRITING: [(&str, Filter); 14] = [
    ("capitalize", |_, values| on_text(values, capitalized)),
    ("e", |_, values| escaped(values)),
    ("escape", |_, values| escaped(values)),
    ("format", |state, values| state.apply_filter("%engine_format", values)),
    ("indent", |_, values| indented(values)),
    ("join", joined),
    ("lower", |_, values| on_text(values, str::to_lowercase)),
    ("pprint", |state, values| state.apply_filter("%engine_pprint", values)),
    ("replace", |_, values| replaced_text(values)),
    ("string", |_, values| on_text(values, str::to_owned)),
    ("title", |_, values| on_text(values, |text| titled(text, |char| is_space(char) || "-({[<".contains(char)))),
    ("tojson", |state, values| json::tojson(state, values)),
    ("trim", |_, values| trimmed(values)),
    ("upper", |_, values| on_text(values, str::to_uppercase)),
];

/// Filters that look at the items of what they are given.
const OTHERS: [(&str, Filter); 15] = [
    ("attr", |_, values| {
        let [value, name] = bind(values, ["obj", "name"])?;
        Ok(attribute_only(required(&value)?, text(required(&name)?)?))
    }),
    ("batch", batches),
    ("count", |_, values| length(values)),
    ("dictsort", |_, values| sorted_pairs(values)),
    ("first", |state, values| Ok(only_items(state, values)?.into_iter().next().unwrap_or_default())),
    ("float", |_, values| numbers::float(values)),
    ("int", |_, values| numbers::int(values)),
    ("items", |_, values| pairs(values)),
    ("last", |state, values| Ok(only_items(state, values)?.pop().unwrap_or_default())),
    ("length", |_, values| length(values)),
    ("list", |state, values| only_items(state, values).map(Value::from)),
    ("reverse", reversed),
    ("slice", slices),
    ("sort", sorted),
    ("unique", unique),
];

pub(super) fn add_to(environment: &mut Environment<'static>) {
    // Not Jinja's; some of them join lists without end.
    ["bool", "chain", "lines", "split", "zip"].iter().for_each(|name| environment.remove_filter(name));
    for (name, filter) in WRITING {
        environment.add_filter(name, move |state: &mut State, values: Rest<ValueOrKwargs>| {
            let values = values.into_values();
            written(state, name, &values)?;
            filter(state, &values)
        });
    }
    for (name, filter) in OTHERS {
        environment.add_filter(name, move |state: &mut State, values: Rest<ValueOrKwargs>| {
            filter(state, &values.into_values())
        });
    }
    environment.add_filter("%engine_format", engine::format);
    environment.add_filter("%engine_pprint", engine::pprint);
    add_from_engine(environment);
}

/// Filters of the engine that go through a list.
fn add_from_engine(environment: &mut Environment<'static>) {
    macro_rules! on_items {
        ($items:ident, $result:expr, $($name:literal: $filter:expr),* $(,)?) => {$(
            environment.add_filter(concat!("%engine_", $name), $filter);
            environment.add_filter($name, |state: &mut State, values: Rest<ValueOrKwargs>| {
                let mut values = values.into_values();
                let first = values.first_mut().ok_or_else(|| wrong("there is nothing to filter"))?;
                *first = Value::from($items(state, first)?);
                RenderBudget::of(state).charge_value(&values[0], Texts::Shared)?;
                let filtered = state.apply_filter(concat!("%engine_", $name), &values)?;
                $result(state, filtered)
            });
        )*};
    }
    on_items! {
        iterated_if_true, generator, "map": engine::map, "reject": engine::reject, "rejectattr": engine::rejectattr,
        "select": engine::select, "selectattr": engine::selectattr,
    }
    on_items! {
        iterated, |_: &mut State, filtered: Value| Ok::<_, Error>(filtered),
        "groupby": engine::groupby, "max": engine::max, "min": engine::min, "sum": engine::sum,
    }
}

fn generator(state: &mut State, filtered: Value) -> Result<Value, Error> {
    Ok(Generator::of(iterated(state, &filtered)?))
}

/// Returns the items of what can be iterated, charged before they are there.
pub(super) fn iterated(state: &mut State, value: &Value) -> Result<Vec<Value>, Error> {
    let count = value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len);
    RenderBudget::of(state).charge((count as u64).saturating_mul(ITEM_BYTES))?;
    items(value)
}

/// Some filters do not even ask whether something without items could have any.
fn iterated_if_true(state: &mut State, value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() { iterated(state, value) } else { Ok(Vec::new()) }
}

fn on_text(values: &[Value], change: impl Fn(&str) -> String) -> Result<Value, Error> {
    let [value] = bind(values, ["s"])?;
    Ok(Value::from(change(&as_text(required(&value)?)?)))
}

/// Returns a value as Python writes it.
fn as_text(value: &Value) -> Result<Cow<'_, str>, Error> {
    let mut written = String::new();
    match value.as_str() {
        Some(text) => Ok(Cow::Borrowed(text)),
        None => write_str(value, &mut written).map(|()| Cow::Owned(written)).map_err(Error::from),
    }
}

fn trimmed(values: &[Value]) -> Result<Value, Error> {
    let [value, chars] = bind(values, ["value", "chars"])?;
    let value = as_text(required(&value)?)?;
    Ok(Value::from(stripped(&value, optional_text(&chars)?, true, true)))
}

fn replaced_text(values: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind(values, ["s", "old", "new", "count"])?;
    let (value, old, new) = (as_text(required(&value)?)?, as_text(required(&old)?)?, as_text(required(&new)?)?);
    let count = optional_integer(&count)?.and_then(|count| usize::try_from(count).ok());
    Ok(Value::from(replaced(&value, &old, &new, count)))
}

fn escaped(values: &[Value]) -> Result<Value, Error> {
    let [value] = bind(values, ["s"])?;
    let value = required(&value)?;
    Ok(if value.is_safe() { value.clone() } else { Value::from_safe_string(escaped_text(&as_text(value)?)) })
}

/// Returns a text with the characters replaced that mean something in HTML.
pub(super) fn escaped_text(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('\'', "&#39;").replace('"', "&#34;")
}

fn indented(values: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind(values, ["s", "width", "first", "blank"])?;
    let value = as_text(required(&value)?)?;
    let indent = match &width {
        Some(width) if width.as_str().is_some() => text(width)?.to_owned(),
        Some(width) => " ".repeat(usize::try_from(integer(width)?).unwrap_or(0)),
        None => " ".repeat(4),
    };
    // The empty line behind a line break at the end counts as one.
    let value = value.into_owned() + "\n";
    let mut out = String::new();
    for (index, line) in lines(&value, false).into_iter().enumerate() {
        out.push_str(if index > 0 { "\n" } else { "" });
        let is_indented = if index == 0 { is_true(&first) } else { is_true(&blank) || !line.is_empty() };
        out.push_str(if is_indented { &indent } else { "" });
        out.push_str(line);
    }
    Ok(Value::from(out))
}

fn joined(state: &mut State, values: &[Value]) -> Result<Value, Error> {
    let [value, separator, attribute] = bind(values, ["value", "d", "attribute"])?;
    let mut value = required(&value)?.clone();
    if let Some(attribute) = attribute.filter(|attribute| !attribute.is_none()) {
        value = state.apply_filter("map", &[value, Kwargs::from_iter([("attribute", attribute)]).into()])?;
    }
    let separator = separator.as_ref().map_or(Ok(Cow::Borrowed("")), as_text)?;
    let mut out = String::new();
    for (index, part) in iterated(state, &value)?.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { &separator });
        write_str(part, &mut out)?;
    }
    Ok(Value::from(out))
}
