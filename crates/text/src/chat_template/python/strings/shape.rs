//! Methods that change the case or width of a text, or tell what its characters are.

use minijinja::{Error, Value};

use crate::chat_template::marked_text::{MARK, count_chars, plain};
use crate::chat_template::python::written::is_printable;
use crate::chat_template::python::wrong;

/// White space, among which Python counts four control characters more than Unicode does.
pub(in crate::chat_template) fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\x1C'..='\x1F')
}

fn is_cased(char: char) -> bool {
    char.is_lowercase() || char.is_uppercase()
}

/// Calls a method without arguments; `None` if there is none of that name.
pub(super) fn call(text: &str, name: &str) -> Option<Value> {
    let plain = plain(text);
    let all = |is: fn(char) -> bool| Value::from(!plain.is_empty() && plain.chars().all(is));
    let has = |is: fn(char) -> bool| plain.chars().any(is);
    Some(match name {
        "upper" => Value::from(text.to_uppercase()),
        "lower" | "casefold" => Value::from(text.to_lowercase()),
        "capitalize" => Value::from(capitalized(text)),
        "title" => Value::from(titled(text, |char| !is_cased(char))),
        "swapcase" => Value::from(text.chars().map(swapped).collect::<String>()),
        "islower" => Value::from(has(char::is_lowercase) && !has(char::is_uppercase)),
        "isupper" => Value::from(has(char::is_uppercase) && !has(char::is_lowercase)),
        "istitle" => Value::from(has(is_cased) && titled(&plain, |char| !is_cased(char)) == plain),
        "isspace" => all(is_space),
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isascii" => Value::from(plain.is_ascii()),
        "isprintable" => Value::from(plain.chars().all(is_printable)),
        "isidentifier" => {
            let is_part = |char: char| char == '_' || char.is_alphanumeric();
            Value::from(
                all(|char| char == '_' || char.is_alphanumeric()).is_true() && {
                    plain.chars().next().is_some_and(|first| is_part(first) && !first.is_numeric())
                },
            )
        }
        _ => return None,
    })
}

fn swapped(char: char) -> String {
    if char.is_uppercase() { char.to_lowercase().collect() } else { char.to_uppercase().collect() }
}

pub(in crate::chat_template) fn capitalized(text: &str) -> String {
    titled(text, |_| false)
}

/// Returns the text with a capital letter behind each character that ends a word and at the beginning, and small letters
/// elsewhere.
pub(in crate::chat_template) fn titled(text: &str, ends_word: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins_word = true;
    for char in text.chars() {
        if char == MARK {
            out.push(char);
            continue;
        }
        match begins_word {
            true => out.extend(char.to_uppercase()),
            false => out.extend(char.to_lowercase()),
        }
        begins_word = ends_word(char);
    }
    out
}

/// Returns the text with a character repeated beside it, up to a width.
pub(super) fn padded(text: &str, name: &str, width: i64, fill: &str) -> Result<Value, Error> {
    if count_chars(fill) != 1 {
        return Err(wrong("texts are padded with one character"));
    }
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(count_chars(text));
    let (before, after) = match name {
        "ljust" => (0, missing),
        "center" => {
            let before = missing / 2 + (missing & width as usize & 1);
            (before, missing - before)
        }
        _ => (missing, 0),
    };
    let sign = if name == "zfill" { text.len() - text.trim_start_matches(['+', '-']).len() } else { 0 };
    let (sign, rest) = text.split_at(sign.min(1));
    Ok(Value::from(format!("{sign}{}{rest}{}", fill.repeat(before), fill.repeat(after))))
}
