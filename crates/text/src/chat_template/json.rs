//! `tojson` as transformers has it: Python's `json.dumps`, with its spaces and without HTML escapes.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::marked_text::{MARK, plain};
use super::python::arguments::{bind, integer, is_true, required, text};
use super::python::objects::Range;
use super::python::written::float;
use super::python::{is_dict, is_list, wrong};
use super::render_budget::{Metered, RenderBudget};

/// The widest indentation that is accepted; a template needs no more, and each level multiplies it.
const INDENT_MAX: usize = 16;

pub(super) fn tojson(state: &mut State, values: &[Value]) -> Result<Value, Error> {
    let [value, ensure_ascii, indent, separators, sort_keys] =
        bind(values, ["x", "ensure_ascii", "indent", "separators", "sort_keys"])?;
    let given = |option: Option<Value>| option.filter(|option| !option.is_none());
    let indent = given(indent).map(|indent| indentation(&indent)).transpose()?;
    let (item, key) = match given(separators) {
        Some(separators) => {
            let parts: Vec<Value> = separators.try_iter()?.collect();
            let [item, key] = &parts[..] else { return Err(wrong("separators are two texts")) };
            (text(item)?.to_owned(), text(key)?.to_owned())
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let options = Options { indent, item, key, ensure_ascii: is_true(&ensure_ascii), sort_keys: is_true(&sort_keys) };
    let mut out = String::new();
    let mut writer = Writer { options: &options, out: Metered::new(RenderBudget::of(state), &mut out), level: 0 };
    writer.value(required(&value)?)?;
    Ok(Value::from(out))
}

/// A number of spaces, or the text itself.
fn indentation(indent: &Value) -> Result<String, Error> {
    match indent.as_str() {
        Some(text) => Ok(text.chars().take(INDENT_MAX).collect()),
        None => Ok(" ".repeat(usize::try_from(integer(indent)?).unwrap_or(0).min(INDENT_MAX))),
    }
}

struct Options {
    indent: Option<String>,
    /// What stands between items, and between a key and its value.
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

struct Writer<'w> {
    options: &'w Options,
    out: Metered<'w>,
    level: usize,
}

impl Writer<'_> {
    /// Writes a value. How deeply it is nested was checked before.
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.text(text);
        }
        match value.kind() {
            ValueKind::None => self.raw("null"),
            ValueKind::Bool => self.raw(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.raw(&number(value)),
            ValueKind::Map if is_dict(value) => self.dict(value),
            _ if value.downcast_object_ref::<Range>().is_some() => Err(not_json(value)),
            _ if is_list(value) && value.len().is_some() || value.is_tuple() => self.list(value),
            _ => Err(not_json(value)),
        }
    }

    fn list(&mut self, list: &Value) -> Result<(), Error> {
        let mut is_empty = true;
        for item in list.try_iter()?.checked() {
            self.begin_item(if is_empty { "[" } else { "" })?;
            self.value(&item?)?;
            is_empty = false;
        }
        self.end(if is_empty { Some("[]") } else { None }, "]")
    }

    fn dict(&mut self, dict: &Value) -> Result<(), Error> {
        let mut pairs = Vec::new();
        for key in dict.try_iter()?.checked() {
            let key = key?;
            pairs.push((name(&key)?, dict.get_item(&key)?));
        }
        if self.options.sort_keys {
            pairs.sort_by(|(left, _), (right, _)| plain(left).cmp(&plain(right)));
        }
        for (index, (name, value)) in pairs.iter().enumerate() {
            self.begin_item(if index == 0 { "{" } else { "" })?;
            self.text(name)?;
            self.raw(&self.options.key)?;
            self.value(value)?;
        }
        self.end(if pairs.is_empty() { Some("{}") } else { None }, "}")
    }

    /// Writes what stands before an item: `open` before the first one, a separator before others.
    fn begin_item(&mut self, open: &str) -> Result<(), Error> {
        if open.is_empty() {
            self.raw(&self.options.item)?;
        } else {
            self.raw(open)?;
            self.level += 1;
        }
        self.new_line()
    }

    fn end(&mut self, empty: Option<&str>, close: &str) -> Result<(), Error> {
        if let Some(empty) = empty {
            return self.raw(empty);
        }
        self.level -= 1;
        self.new_line()?;
        self.raw(close)
    }

    fn new_line(&mut self) -> Result<(), Error> {
        let Some(indent) = &self.options.indent else { return Ok(()) };
        self.raw("\n")?;
        (0..self.level).try_for_each(|_| self.raw(indent))
    }

    /// Marks stay as they are: escaped, they could not be found again and would end up in the prompt.
    fn text(&mut self, text: &str) -> Result<(), Error> {
        let mut escaped = String::with_capacity(text.len() + 2);
        escaped.push('"');
        for char in text.chars() {
            match char {
                '"' => escaped.push_str("\\\""),
                '\\' => escaped.push_str("\\\\"),
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                '\t' => escaped.push_str("\\t"),
                '\x08' => escaped.push_str("\\b"),
                '\x0C' => escaped.push_str("\\f"),
                ' '..='~' => escaped.push(char),
                '\x7F'.. if char == MARK || !self.options.ensure_ascii => escaped.push(char),
                _ => char.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(escaped, "\\u{unit:04x}"))?,
            }
        }
        escaped.push('"');
        self.raw(&escaped)
    }

    fn raw(&mut self, text: &str) -> Result<(), Error> {
        self.out.write(text)
    }
}

fn number(number: &Value) -> String {
    if number.is_integer() {
        return number.to_string();
    }
    match float(f64::try_from(number.clone()).unwrap_or(f64::NAN)).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        float => float.to_owned(),
    }
}

/// Returns a key as a text; JSON has no others.
fn name(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => text(key).map(str::to_owned),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number(key)),
        _ => Err(wrong(format!("{} cannot be a key in JSON", key.kind()))),
    }
}

fn not_json(value: &Value) -> Error {
    wrong(format!("{} cannot be written as JSON", value.kind()))
}
