//! Operators that do as Python's do, and are metered where they build values. Each is a filter whose name cannot be written in
//! a template.

use std::cmp::Ordering;
use std::sync::LazyLock;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, context};

use super::filters::{escaped_text, iterated};
use super::python::arguments::integer;
use super::python::compare::{contains, equal, order};
use super::python::item::{attribute, item, slice};
use super::python::{containers, is_dict, is_generator, strings, wrong};
use super::render_budget::{ITEM_BYTES, RenderBudget, Texts, refuse_namespace};
use super::writing::{has_wide_field, written};

pub(super) const CONCAT: &str = "%concat";
pub(super) const ADD: &str = "%add";
pub(super) const MULTIPLY: &str = "%multiply";
pub(super) const BUILT: &str = "%built";
pub(super) const BUILT_BY_CALL: &str = "%built_by_call";
pub(super) const RETURNED: &str = "%returned";
pub(super) const STORED: &str = "%stored";
pub(super) const INCLUDE: &str = "%include";
pub(super) const REMAINDER: &str = "%remainder";
pub(super) const EQUAL: &str = "%equal";
pub(super) const DIFFERENT: &str = "%different";
pub(super) const LESS: &str = "%less";
pub(super) const AT_MOST: &str = "%at_most";
pub(super) const GREATER: &str = "%greater";
pub(super) const AT_LEAST: &str = "%at_least";
pub(super) const CONTAINED: &str = "%contained";
pub(super) const ITEM: &str = "%item";
pub(super) const ATTRIBUTE: &str = "%attribute";
pub(super) const SLICE: &str = "%slice";
pub(super) const ITERATED: &str = "%iterated";

/// Bytes that a character can become when it is escaped for HTML.
const ESCAPED_BYTES_MAX: u64 = 5;

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
    environment.add_filter(REMAINDER, remainder);
    environment.add_filter(EQUAL, |left: &Value, right: &Value| equal(left, right));
    environment.add_filter(DIFFERENT, |left: &Value, right: &Value| !equal(left, right));
    environment.add_filter(LESS, |left: &Value, right: &Value| order(left, right).map(Ordering::is_lt));
    environment.add_filter(AT_MOST, |left: &Value, right: &Value| order(left, right).map(Ordering::is_le));
    environment.add_filter(GREATER, |left: &Value, right: &Value| order(left, right).map(Ordering::is_gt));
    environment.add_filter(AT_LEAST, |left: &Value, right: &Value| order(left, right).map(Ordering::is_ge));
    environment.add_filter(CONTAINED, |item: &Value, container: &Value| contains(container, item));
    environment.add_filter(ITEM, item);
    environment.add_filter(ATTRIBUTE, attribute_by_name);
    environment.add_filter(SLICE, slice);
    environment.add_filter(ITERATED, to_iterate);
    environment
        .set_formatter(|out: &mut Output, state: &mut State, value: &Value| RenderBudget::of(state).write(value, out));
    environment.set_unknown_method_callback(method);
}

/// Calls a method of one of Python's types.
pub(super) fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => {
            let all: Vec<Value> = std::iter::once(value).chain(arguments).cloned().collect();
            written(state, name, &all)?;
            strings::call(text, name, arguments)
        }
        None => containers::call(value, name, arguments),
    }
}

fn attribute_by_name(value: &Value, name: &Value) -> Result<Value, Error> {
    attribute(value, name.as_str().unwrap_or_default())
}

/// What a loop goes through: `None` is refused, and a generator becomes a list, so that the loop knows where it ends.
fn to_iterate(state: &mut State, value: &Value) -> Result<Value, Error> {
    match value.as_str().is_some() || value.is_none() || is_generator(value) {
        true => iterated(state, value).map(Value::from),
        false => Ok(value.clone()),
    }
}

fn concat(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    let budget = RenderBudget::of(state);
    let bytes = left.as_str().map_or(0, str::len) + right.as_str().map_or(0, str::len);
    let mut text = String::with_capacity(bytes);
    budget.write(left, &mut text)?;
    budget.write(right, &mut text)?;
    Ok(Value::from(text))
}

fn add(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    match (left.as_str(), right.as_str()) {
        // Whatever is added to text that is marked as safe is escaped, although nothing else is.
        (Some(left_text), Some(right_text)) if left.is_safe() || right.is_safe() => {
            RenderBudget::of(state).charge((left_text.len() + right_text.len()) as u64 * ESCAPED_BYTES_MAX)?;
            let safe = |value: &Value, text: &str| if value.is_safe() { text.to_owned() } else { escaped_text(text) };
            Ok(Value::from_safe_string(safe(left, left_text) + &safe(right, right_text)))
        }
        (Some(_), Some(_)) => concat(state, left, right),
        _ => {
            let items = left.len().unwrap_or(0).saturating_add(right.len().unwrap_or(0)) as u64;
            RenderBudget::of(state).charge(items.saturating_mul(ITEM_BYTES))?;
            plainly("left + right", left, right)
        }
    }
}

fn multiply(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    let is_repeated = |value: &Value| !matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let (repeated, times) = if is_repeated(left) { (left, right) } else { (right, left) };
    if !is_repeated(repeated) {
        return plainly("left * right", left, right);
    }
    // Less than never is never.
    let times = integer(times)?.max(0) as u64;
    let bytes = match repeated.as_str() {
        Some(text) => text.len() as u64,
        None => repeated.len().unwrap_or(0) as u64 * ITEM_BYTES,
    };
    RenderBudget::of(state).charge(bytes.saturating_mul(times))?;
    plainly("left * right", repeated, &Value::from(times))
}

/// `%` fills in a text, or is the remainder of a division.
fn remainder(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    let Some(text) = left.as_str() else { return plainly("left % right", left, right) };
    let arguments: Vec<Value> = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
    RenderBudget::of(state).charge_value(left, Texts::Written)?;
    RenderBudget::of(state).charge_value(right, Texts::Written)?;
    if has_wide_field(text) {
        return Err(wrong("a field of a format is too wide"));
    }
    if !text.contains('%') && !arguments.is_empty() && !is_dict(right) {
        return Err(wrong("there is no place for what is to be filled in"));
    }
    format(FormatStyle::Printf, text, &arguments).map(Value::from)
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
