//! `tojson` as transformers has it: Python's `json.dumps` with its spaces, and without HTML escapes.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

use super::guard::SENTINELS;

/// The widest indentation that is accepted; a template needs no more, and each level multiplies it.
const INDENT_MAX: usize = 16;

pub(super) fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;

    let failed = |error: serde_json::Error| Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}"));
    let mut json = serde_json::to_value(&value).map_err(failed)?;
    if sort_keys == Some(true) {
        json.sort_all_objects();
    }
    let text = match (indent, separators.as_deref()) {
        (Some(indent), _) => {
            let spaces = " ".repeat(indent.min(INDENT_MAX));
            write(&json, PrettyFormatter::with_indent(spaces.as_bytes()))
        }
        (None, Some([item, key])) => write(&json, Spaced { item, key }),
        (None, _) => write(&json, Spaced { item: ", ", key: ": " }),
    };
    let text = text.map_err(failed)?;
    Ok(Value::from(if ensure_ascii == Some(true) { escape_non_ascii(&text) } else { text }))
}

/// Sentinels stay as they are: escaped, they could not be found again and would end up in the prompt.
fn escape_non_ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for char in json.chars() {
        if char.is_ascii() || SENTINELS.contains(&char) {
            out.push(char);
        } else {
            out.extend(char.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    out
}

fn write(json: &Json, formatter: impl Formatter) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    json.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}

/// Python's compact form, which has spaces.
struct Spaced<'s> {
    item: &'s str,
    key: &'s str,
}

impl Spaced<'_> {
    fn separate(&self, out: &mut (impl ?Sized + Write), is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { out.write_all(self.item.as_bytes()) }
    }
}

impl Formatter for Spaced<'_> {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }
}
