//! Values as texts: Python's `str` and `repr`.

use std::fmt::{self, Write};

use minijinja::Value;
use minijinja::value::ValueKind;

use super::objects::{Range, View};
use super::{is_dict, is_of_type};
use crate::chat_template::marked_text::MARK;

/// Writes a value as `str` does.
pub(in crate::chat_template) fn write_str(value: &Value, out: &mut dyn Write) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(value, out),
    }
}

/// Writes a value as `repr` does. How deeply it is nested was checked before.
fn write_repr(value: &Value, out: &mut dyn Write) -> fmt::Result {
    if let Some(text) = value.as_str() {
        return write_quoted(text, out);
    }
    if let Some(view) = value.downcast_object_ref::<View>() {
        write!(out, "{}(", view.name())?;
        write_items("[", value, "]", out)?;
        return out.write_str(")");
    }
    if let Some(range) = value.downcast_object_ref::<Range>() {
        return write!(out, "{range}");
    }
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::Number if !value.is_integer() => {
            out.write_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN)))
        }
        ValueKind::Map if is_dict(value) => write_pairs(value, out),
        ValueKind::Map if is_of_type(value, "::Namespace") => {
            out.write_str("<Namespace ")?;
            write_pairs(value, out)?;
            out.write_str(">")
        }
        ValueKind::Seq if value.is_tuple() || is_of_type(value, "::GroupTuple") => {
            write_items("(", value, if value.len() == Some(1) { ",)" } else { ")" }, out)
        }
        ValueKind::Seq => write_items("[", value, "]", out),
        ValueKind::Iterable if value.len().is_some() => write_items("[", value, "]", out),
        _ => write!(out, "{value}"),
    }
}

fn write_items(open: &str, value: &Value, close: &str, out: &mut dyn Write) -> fmt::Result {
    out.write_str(open)?;
    for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
        out.write_str(if index == 0 { "" } else { ", " })?;
        write_repr(&item, out)?;
    }
    out.write_str(close)
}

fn write_pairs(dict: &Value, out: &mut dyn Write) -> fmt::Result {
    out.write_str("{")?;
    for (index, key) in dict.try_iter().into_iter().flatten().enumerate() {
        out.write_str(if index == 0 { "" } else { ", " })?;
        write_repr(&key, out)?;
        out.write_str(": ")?;
        write_repr(&dict.get_item(&key).unwrap_or_default(), out)?;
    }
    out.write_str("}")
}

fn write_quoted(text: &str, out: &mut dyn Write) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for char in text.chars() {
        match char {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            _ if char == quote => write!(out, "\\{char}")?,
            _ if char == MARK || is_printable(char) => out.write_char(char)?,
            '\0'..='\u{FF}' => write!(out, "\\x{:02x}", char as u32)?,
            '\u{100}'..='\u{FFFF}' => write!(out, "\\u{:04x}", char as u32)?,
            _ => write!(out, "\\U{:08x}", char as u32)?,
        }
    }
    out.write_char(quote)
}

/// Rust escapes the same characters when it writes a text for debugging, but also marks that combine with the character
/// before them if there is none.
pub(super) fn is_printable(char: char) -> bool {
    if char.is_ascii() {
        return !char.is_ascii_control();
    }
    String::from_iter(['a', char]).escape_debug().nth(1) == Some(char)
}

/// Returns a float as Python writes it: the shortest text that reads back as the same number.
pub(in crate::chat_template) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse().unwrap_or(0) {
        -4..16 => format!("{number:?}"),
        exponent => format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, i32::abs(exponent)),
    }
}

#[cfg(test)]
mod tests {
    use minijinja::value::Tuple;

    use super::*;

    fn check(value: Value, expect: &str) {
        let mut text = String::new();
        write_str(&value, &mut text).unwrap();
        assert_eq!(text, expect);
    }

    #[test]
    fn floats_have_pythons_exponents() {
        for (number, expect) in [
            (0.1 + 0.2, "0.30000000000000004"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (1e16, "1e+16"),
            (1e100, "1e+100"),
            (0.0001, "0.0001"),
            (0.000_012_5, "1.25e-05"),
            (5e-324, "5e-324"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float(number), expect);
        }
    }

    #[test]
    fn texts_are_quoted_inside_of_other_values_only() {
        check(Value::from("it's"), "it's");
        check(Value::from(vec!["it's", "\"", "'\"", "\u{301}é\u{A0}\u{2028}\u{7F}\u{1F642}\u{E0001}\\\n"]), {
            "[\"it's\", '\"', '\\'\"', '\u{301}é\\xa0\\u2028\\x7f\u{1F642}\\U000e0001\\\\\\n']"
        });
        check(Value::from(vec!["<\u{FDD0}b"]), "['<\u{FDD0}b']");
        check(Value::from(Tuple::from([Value::from(1)])), "(1,)");
        check(Value::from_pairs([("a", Value::from(())), ("b", Value::from(1e-5))]), "{'a': None, 'b': 1e-05}");
    }
}
