//! What a `$ref` points to. Only the schema itself is searched; nothing is fetched.

use serde_json::Value;

use super::{GrammarError, Position, escaped};

pub(super) struct Target<'s> {
    /// `#` or `#/...`, the same for every way to write the reference.
    pub pointer: String,
    pub schema: &'s Value,
    /// Below a `$id` other than the root's.
    pub is_embedded: bool,
}

pub(super) fn resolve<'s>(root: &'s Value, reference: &str, position: &Position) -> Result<Target<'s>, GrammarError> {
    let error = |problem: &str| position.error("$ref", format!("is {reference:?}, which {problem}"));
    if position.is_embedded {
        return Err(error("stands below a $id of its own; only references relative to the whole schema are followed"));
    }
    let own_id = root.get("$id").and_then(Value::as_str).map(|id| id.trim_end_matches('#'));
    let fragment = match reference.split_once('#') {
        Some(("", fragment)) => fragment,
        Some((document, fragment)) if Some(document) == own_id => fragment,
        None if Some(reference) == own_id => "",
        _ => return Err(error("refers to another document; references are only followed within the schema")),
    };
    let fragment = percent_decoded(fragment).ok_or_else(|| error("is not properly escaped"))?;
    if fragment.is_empty() {
        return Ok(Target { pointer: "#".to_owned(), schema: root, is_embedded: false });
    }
    let found = match fragment.strip_prefix('/') {
        Some(path) => follow(root, path),
        None => find_anchor(root, &fragment),
    };
    found.ok_or_else(|| error("does not exist in the schema"))
}

fn follow<'s>(root: &'s Value, path: &str) -> Option<Target<'s>> {
    let mut target = Target { pointer: format!("#/{path}"), schema: root, is_embedded: false };
    for step in path.split('/') {
        let key = step.replace("~1", "/").replace("~0", "~");
        target.schema = match target.schema {
            Value::Object(fields) => fields.get(&key)?,
            Value::Array(items) => items.get(key.parse::<usize>().ok()?)?,
            _ => return None,
        };
        target.is_embedded |= target.schema.get("$id").is_some_and(Value::is_string);
    }
    Some(target)
}

/// The position of `"$anchor": name`, if there is exactly one.
fn find_anchor<'s>(root: &'s Value, name: &str) -> Option<Target<'s>> {
    let mut found = Vec::new();
    let mut open = vec![("#".to_owned(), root, false)];
    while let Some((pointer, value, is_embedded)) = open.pop() {
        let is_embedded = is_embedded || (pointer != "#" && value.get("$id").is_some_and(Value::is_string));
        match value {
            Value::Array(items) => {
                let items = items.iter().enumerate();
                open.extend(items.map(|(index, item)| (format!("{pointer}/{index}"), item, is_embedded)));
            }
            Value::Object(fields) => {
                if fields.get("$anchor").is_some_and(|anchor| anchor == name) {
                    found.push(Target { pointer: pointer.clone(), schema: value, is_embedded });
                }
                let fields = fields.iter();
                open.extend(fields.map(|(key, field)| (format!("{pointer}/{}", escaped(key)), field, is_embedded)));
            }
            _ => {}
        }
    }
    if found.len() == 1 { found.pop() } else { None }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?].map(char::from);
            let [high, low] = [digits[0].to_digit(16)?, digits[1].to_digit(16)?];
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
