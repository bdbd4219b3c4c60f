//! Methods that cut a text into parts, or leave parts of it out.

use std::ops::Range;

use minijinja::value::Tuple;
use minijinja::{Error, Value};

use super::shape::is_space;
use crate::chat_template::marked_text::{MARK, MarkedText, plain};
use crate::chat_template::python::wrong;

/// Returns the text without some characters at its ends: white space, if none are named.
pub(in crate::chat_template) fn stripped<'t>(
    text: &'t str,
    chars: Option<&str>,
    at_start: bool,
    at_end: bool,
) -> &'t str {
    let text = MarkedText::new(text);
    let is_unwanted = |char: char| chars.map_or_else(|| is_space(char), |chars| plain(chars).contains(char));
    let all = text.plain();
    let start = if at_start { all.len() - all.trim_start_matches(is_unwanted).len() } else { 0 };
    let end = if at_end { all.trim_end_matches(is_unwanted).len() } else { all.len() };
    text.cut(start..end)
}

/// Returns the parts between separators, or between runs of white space if there is no separator.
pub(super) fn split(
    text: &str,
    separator: Option<&str>,
    splits_max: Option<usize>,
    is_from_end: bool,
) -> Result<Value, Error> {
    let text = MarkedText::new(text);
    let parts = match separator.map(plain) {
        Some(separator) if separator.is_empty() => return Err(wrong("a separator cannot be empty")),
        Some(separator) => between(&text, separators(&text, &separator, splits_max, is_from_end)),
        None => words(&text, splits_max, is_from_end),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn separators(text: &MarkedText<'_>, wanted: &str, max: Option<usize>, is_from_end: bool) -> Vec<Range<usize>> {
    let range = |(at, found): (usize, &str)| at..at + found.len();
    let max = max.unwrap_or(usize::MAX);
    match is_from_end {
        false => text.plain().match_indices(wanted).take(max).map(range).collect(),
        true => {
            let mut found: Vec<Range<usize>> = text.plain().rmatch_indices(wanted).take(max).map(range).collect();
            found.reverse();
            found
        }
    }
}

fn between<'t>(text: &MarkedText<'t>, cuts: Vec<Range<usize>>) -> Vec<&'t str> {
    let starts = std::iter::once(0).chain(cuts.iter().map(|cut| cut.end));
    let ends = cuts.iter().map(|cut| cut.start).chain([text.plain().len()]);
    starts.zip(ends).map(|(start, end)| text.cut(start..end)).collect()
}

fn words<'t>(text: &MarkedText<'t>, splits_max: Option<usize>, is_from_end: bool) -> Vec<&'t str> {
    let all = text.plain();
    let splits_max = splits_max.unwrap_or(usize::MAX);
    let mut words = Vec::new();
    // What is left to cut words from.
    let (mut start, mut end) =
        (all.len() - all.trim_start_matches(is_space).len(), all.trim_end_matches(is_space).len());
    while start < end {
        let rest = &all[start..end];
        let cut = if is_from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let cut = cut.filter(|_| words.len() < splits_max);
        match (cut, is_from_end) {
            (Some(cut), false) => {
                words.push(text.cut(start..start + cut));
                start = end - rest[cut..].trim_start_matches(is_space).len();
            }
            (Some(cut), true) => {
                let word = start + cut + rest[cut..].chars().next().map_or(0, char::len_utf8);
                words.push(text.cut(word..end));
                end = start + rest[..cut].trim_end_matches(is_space).len();
            }
            (None, false) => {
                // The last part keeps the white space at its end if the words are counted.
                let end = if words.len() < splits_max { end } else { all.len() };
                words.push(text.cut(start..end));
                break;
            }
            (None, true) => {
                let start = if words.len() < splits_max { start } else { 0 };
                words.push(text.cut(start..end));
                break;
            }
        }
    }
    if is_from_end {
        words.reverse();
    }
    words
}

/// Returns the lines of a text, with their ends or without.
pub(in crate::chat_template) fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let text = MarkedText::new(text);
    let all = text.plain();
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = all.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        if !is_line_end(char) {
            continue;
        }
        let mut next = at + char.len_utf8();
        if char == '\r' && chars.next_if(|(_, char)| *char == '\n').is_some() {
            next += 1;
        }
        lines.push(text.cut(start..if keeps_ends { next } else { at }));
        start = next;
    }
    if start < all.len() {
        lines.push(text.cut(start..all.len()));
    }
    lines
}

fn is_line_end(char: char) -> bool {
    matches!(char, '\n' | '\r' | '\x0B' | '\x0C' | '\x1C'..='\x1E' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Returns what is before a separator, the separator and what is behind it.
pub(super) fn partition(text: &str, separator: &str, is_from_end: bool) -> Result<Value, Error> {
    let (text, separator) = (MarkedText::new(text), plain(separator));
    let all = text.plain();
    if separator.is_empty() {
        return Err(wrong("a separator cannot be empty"));
    }
    let found = if is_from_end { all.rfind(&*separator) } else { all.find(&*separator) };
    let parts = match found {
        Some(at) => {
            let end = at + separator.len();
            [text.cut(0..at), text.cut(at..end), text.cut(end..all.len())]
        }
        None if is_from_end => ["", "", text.cut(0..all.len())],
        None => [text.cut(0..all.len()), "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// Returns the text with one text in the place of another, everywhere or so many times.
pub(in crate::chat_template) fn replaced(text: &str, old: &str, new: &str, max: Option<usize>) -> String {
    let (old, max) = (plain(old), max.unwrap_or(usize::MAX));
    let mut chars = old.chars();
    match (chars.next(), chars.next()) {
        _ if text.contains(MARK) => {}
        // Found much faster.
        (Some(char), None) => return text.replacen(char, new, max),
        _ => return text.replacen(&*old, new, max),
    }
    let text = MarkedText::new(text);
    let (mut out, mut done) = (String::new(), 0);
    for (at, found) in text.plain().match_indices(&*old).take(max) {
        out.push_str(text.cut(done..at));
        out.push_str(new);
        done = at + found.len();
    }
    out + text.cut(done..text.plain().len())
}

pub(super) fn without_affix<'t>(text: &'t str, affix: &str, is_prefix: bool) -> &'t str {
    let (text, affix) = (MarkedText::new(text), plain(affix));
    let all = text.plain();
    match is_prefix {
        true if all.starts_with(&*affix) => text.cut(affix.len()..all.len()),
        false if all.ends_with(&*affix) => text.cut(0..all.len() - affix.len()),
        _ => text.cut(0..all.len()),
    }
}
