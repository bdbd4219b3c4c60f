//! Operators and filters that build values, metered. Their names cannot be written in a template.

use std::sync::LazyLock;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, context, filters};

use super::json;
use super::render_budget::{RenderBudget, Texts, refuse_namespace};

pub(super) const CONCAT: &str = "%concat";
pub(super) const ADD: &str = "%add";
pub(super) const MULTIPLY: &str = "%multiply";
pub(super) const BUILT: &str = "%built";
pub(super) const BUILT_BY_CALL: &str = "%built_by_call";
pub(super) const RETURNED: &str = "%returned";
pub(super) const STORED: &str = "%stored";
pub(super) const INCLUDE: &str = "%include";

/// Lists and tuples in a value cost what they hold in place.
const ITEM_BYTES: u64 = 32;

/// For what the engine's own operators do to anything but texts.
static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment
});

pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter(CONCAT, concat);
    environment.add_filter(ADD, add);
    environment.add_filter(MULTIPLY, multiply);
    environment.add_filter(BUILT, built);
    environment.add_filter(BUILT_BY_CALL, built_by_call);
    environment.add_filter(RETURNED, returned);
    environment.add_filter(STORED, stored);
    environment.add_filter(INCLUDE, include);
    environment
        .set_formatter(|out: &mut Output, state: &mut State, value: &Value| RenderBudget::of(state).write(value, out));
    environment.set_unknown_method_callback(method);
    // They join lists without end, and are not Jinja's.
    environment.remove_filter("chain");
    environment.remove_filter("zip");
    add_filters(environment);
}

/// Filters that write values out or put them into more lists, each under a name of its own behind one that is metered.
fn add_filters(environment: &mut Environment<'static>) {
    macro_rules! metered {
        ($charge:ident: $($name:literal: $plain:expr),* $(,)?) => {$(
            environment.add_filter(concat!("%", $name), $plain);
            environment.add_filter($name, |state: &mut State, values: Rest<ValueOrKwargs>| {
                let values = values.into_values();
                $charge(state, $name, &values)?;
                state.apply_filter(concat!("%", $name), &values)
            });
        )*};
    }
    metered! {
        written: "capitalize": filters::capitalize, "escape": filters::escape, "e": filters::escape,
        "format": filters::format, "indent": filters::indent, "join": filters::join, "lower": filters::lower,
        "pprint": filters::pprint, "replace": filters::replace, "split": filters::split, "string": filters::string,
        "title": filters::title, "tojson": json::tojson, "trim": filters::trim, "upper": filters::upper,
    }
    metered! {
        nested: "batch": filters::batch, "slice": filters::slice, "groupby": filters::groupby, "items": filters::items,
    }
}

fn nested(state: &mut State, _: &str, values: &[Value]) -> Result<(), Error> {
    let budget = RenderBudget::of(state);
    values.iter().try_for_each(|value| budget.charge_value(value, Texts::Shared))
}

/// Charges what a filter or method may write, before it does.
fn written(state: &mut State, name: &str, values: &[Value]) -> Result<(), Error> {
    let budget = RenderBudget::of(state);
    values.iter().try_for_each(|value| budget.charge_value(value, Texts::Written))?;
    let text = values.first().and_then(Value::as_str).unwrap_or_default();
    match name {
        "replace" => {
            let from = values.get(1).and_then(Value::as_str).unwrap_or_default();
            budget.charge(text.matches(from).count() as u64 * longest_text(&values[1..]))
        }
        "join" => {
            let items = values.iter().filter_map(Value::len).max().unwrap_or(0) as u64;
            budget.charge(items.saturating_mul(longest_text(values)))
        }
        "indent" => {
            let lines = text.matches('\n').count() as u64 + 1;
            budget.charge(lines.saturating_mul(largest_number(&values[1..]).max(4)))
        }
        "format" if has_wide_field(text) => {
            Err(Error::new(ErrorKind::InvalidOperation, "a field of a format is too wide"))
        }
        _ => Ok(()),
    }
}

/// Among arguments, with those that have names.
fn longest_text(arguments: &[Value]) -> u64 {
    let longest = each_argument(arguments).filter_map(|value| value.as_str().map(str::len)).max();
    longest.unwrap_or(0) as u64
}

fn largest_number(arguments: &[Value]) -> u64 {
    each_argument(arguments).filter_map(|value| value.as_usize()).max().unwrap_or(0) as u64
}

fn each_argument(arguments: &[Value]) -> impl Iterator<Item = Value> {
    arguments.iter().flat_map(|argument| match argument.is_kwargs() {
        true => argument.try_iter().into_iter().flatten().filter_map(|name| argument.get_item(&name).ok()).collect(),
        false => vec![argument.clone()],
    })
}

/// Whether a number in a format string has more than four digits, or a width is given as an argument.
fn has_wide_field(format: &str) -> bool {
    format.contains('*') || format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4)
}

fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let all: Vec<Value> = std::iter::once(value).chain(arguments).cloned().collect();
    if value.as_str().is_some() {
        written(state, name, &all)?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

fn concat(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    let budget = RenderBudget::of(state);
    budget.write(left, &mut text)?;
    budget.write(right, &mut text)?;
    Ok(Value::from(text))
}

fn add(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    match (left.as_str(), right.as_str()) {
        (Some(_), Some(_)) => concat(state, left, right),
        _ => {
            let items = left.len().unwrap_or(0).saturating_add(right.len().unwrap_or(0)) as u64;
            RenderBudget::of(state).charge(items.saturating_mul(ITEM_BYTES))?;
            plainly("left + right", left, right)
        }
    }
}

fn multiply(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    for (repeated, times) in [(left, right), (right, left)] {
        let bytes = match repeated.as_str() {
            Some(text) => text.len() as u64,
            None => repeated.len().unwrap_or(0) as u64 * ITEM_BYTES,
        };
        RenderBudget::of(state).charge(bytes.saturating_mul(times.as_usize().unwrap_or(0) as u64))?;
    }
    plainly("left * right", left, right)
}

fn plainly(operation: &'static str, left: &Value, right: &Value) -> Result<Value, Error> {
    PLAIN.compile_expression(operation)?.eval(context! { left, right })
}

/// A list or map, or what is in its place, with nothing in it that can still change.
fn built(state: &mut State, value: &Value) -> Result<Value, Error> {
    RenderBudget::of(state).charge_value(value, Texts::Shared)?;
    refuse_namespaces_in(value)?;
    Ok(value.clone())
}

fn refuse_namespaces_in(value: &Value) -> Result<(), Error> {
    for key in value.try_iter().into_iter().flatten() {
        refuse_namespace(&key)?;
        if let Ok(item) = value.get_item(&key) {
            refuse_namespace(&item)?;
        }
    }
    Ok(())
}

fn built_by_call(state: &mut State, value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::Map {
        refuse_namespaces_in(value)?;
    }
    returned(state, value)
}

/// What a filter or method gave.
fn returned(state: &mut State, value: &Value) -> Result<Value, Error> {
    RenderBudget::of(state).charge_shallow(value)?;
    Ok(value.clone())
}

/// What is put into a namespace.
fn stored(value: &Value) -> Result<Value, Error> {
    refuse_namespace(value)?;
    Ok(value.clone())
}

fn include(_: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "there is no other template to include, import or extend"))
}
