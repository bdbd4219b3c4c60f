//! Regular expressions of JSON Schema, which are JavaScript's, in the syntax of Rust's `regex`, which llguidance reads.
//!
//! The two share most of their syntax and differ in details that would be errors, or worse, mean something else: `[[]`,
//! `[a&&b]`, `\<`, a lone brace.

use std::iter::Peekable;
use std::str::Chars;

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

use super::super::regex;

/// Steps of the automaton that may be looked at to find whether it accepts anything; llguidance takes as many.
const FUEL_MAX: u64 = 10_000;
/// Text of a pattern that is made here.
const MADE_BYTES_MAX: usize = 16 << 10;

/// Returns the same expression in the syntax of Rust, or why it cannot be enforced.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '\\' => match escape(&mut rest, false)? {
                Escape::Char(char) => push_literal(&mut out, char),
                Escape::Class(class) => out.push_str(&class),
            },
            '[' => class(&mut rest, &mut out)?,
            '(' => {
                out.push('(');
                let mut ahead = rest.clone();
                if ahead.next() == Some('?') {
                    match (ahead.next(), ahead.next()) {
                        (Some('=' | '!'), _) => return Err("looks ahead, which is not supported".to_owned()),
                        (Some('<'), Some('=' | '!')) => return Err("looks behind, which is not supported".to_owned()),
                        _ => {}
                    }
                }
            }
            '{' if !is_count(rest.clone()) => out.push_str("\\{"),
            '{' => {
                out.push('{');
                for char in rest.by_ref() {
                    out.push(char);
                    if char == '}' {
                        break;
                    }
                }
            }
            '}' | ']' => {
                out.push('\\');
                out.push(char);
            }
            plain => out.push(plain),
        }
    }
    Ok(out)
}

/// Returns whether a brace begins `{2}`, `{2,}` or `{2,3}`.
fn is_count(rest: Peekable<Chars>) -> bool {
    let inner: String = rest.take_while(|&char| char != '}').take(24).collect();
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (min, max) = inner.split_once(',').unwrap_or((&inner, ""));
    !min.is_empty() && digits(min) && digits(max)
}

enum Escape {
    Char(char),
    Class(String),
}

fn escape(rest: &mut Peekable<Chars>, is_in_class: bool) -> Result<Escape, String> {
    let char = rest.next().ok_or("ends with a backslash")?;
    Ok(match char {
        'd' | 'D' | 'w' | 'W' | 's' | 'S' => Escape::Class(format!("\\{char}")),
        'p' | 'P' => {
            let mut class = format!("\\{char}");
            if rest.peek() == Some(&'{') {
                for char in rest.by_ref() {
                    class.push(char);
                    if char == '}' {
                        break;
                    }
                }
            }
            Escape::Class(class)
        }
        'b' if is_in_class => Escape::Char('\u{8}'),
        'b' | 'B' => return Err("asks for a word boundary, which is not supported".to_owned()),
        'A' if !is_in_class => Escape::Class("\\A".to_owned()),
        'z' | 'Z' if !is_in_class => Escape::Class("\\z".to_owned()),
        '1'..='9' | 'k' => return Err("refers back to a group, which is not supported".to_owned()),
        '0' => Escape::Char('\0'),
        'n' => Escape::Char('\n'),
        'r' => Escape::Char('\r'),
        't' => Escape::Char('\t'),
        'f' => Escape::Char('\u{C}'),
        'v' => Escape::Char('\u{B}'),
        'c' => {
            let letter = rest.next().filter(char::is_ascii_alphabetic).ok_or("has \\c without a letter")?;
            Escape::Char(char::from(letter as u8 % 32))
        }
        'x' => Escape::Char(char::from_u32(hexadecimal(rest, 2)?).ok_or("has \\x with a wrong number")?),
        'u' => Escape::Char(unicode(rest)?),
        other => Escape::Char(other),
    })
}

fn hexadecimal(rest: &mut Peekable<Chars>, digits: usize) -> Result<u32, String> {
    let text: String = rest.take(digits).collect();
    let is_whole = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = if is_whole { u32::from_str_radix(&text, 16).ok() } else { None };
    number.ok_or_else(|| "has an escape with a wrong number".to_owned())
}

fn unicode(rest: &mut Peekable<Chars>) -> Result<char, String> {
    const LONE: &str = "names half of a character";
    if rest.peek() == Some(&'{') {
        let text: String = rest.skip(1).take_while(|&char| char != '}').collect();
        return u32::from_str_radix(&text, 16).ok().and_then(char::from_u32).ok_or_else(|| LONE.to_owned());
    }
    let unit = hexadecimal(rest, 4)?;
    let code = if (0xD800..0xDC00).contains(&unit) {
        let mut ahead = rest.clone();
        if (ahead.next(), ahead.next()) != (Some('\\'), Some('u')) {
            return Err(LONE.to_owned());
        }
        let low = hexadecimal(&mut ahead, 4)?;
        *rest = ahead;
        0x10000 + ((unit - 0xD800) << 10) + low.wrapping_sub(0xDC00) % 0x400
    } else {
        unit
    };
    char::from_u32(code).ok_or_else(|| LONE.to_owned())
}

/// Reads a class behind its bracket.
fn class(rest: &mut Peekable<Chars>, out: &mut String) -> Result<(), String> {
    const OPEN: &str = "has a bracket that is not closed";
    let is_negated = rest.next_if_eq(&'^').is_some();
    if rest.next_if_eq(&']').is_some() {
        return if is_negated {
            out.push_str("(?s:.)");
            Ok(())
        } else {
            Err("has an empty class, which matches nothing".to_owned())
        };
    }
    out.push_str(if is_negated { "[^" } else { "[" });
    loop {
        match member(rest)?.ok_or(OPEN)? {
            Member::End => break,
            Member::Class(class) => out.push_str(&class),
            Member::Char(from) => {
                push_member(out, from);
                let mut ahead = rest.clone();
                if ahead.next() == Some('-') {
                    // A range, unless the dash is the last member or a class stands behind it.
                    if let Some(Member::Char(to)) = member(&mut ahead)? {
                        if to < from {
                            return Err("has a range whose ends are swapped".to_owned());
                        }
                        *rest = ahead;
                        out.push('-');
                        push_member(out, to);
                    }
                }
            }
        }
    }
    out.push(']');
    Ok(())
}

enum Member {
    End,
    Char(char),
    Class(String),
}

fn member(rest: &mut Peekable<Chars>) -> Result<Option<Member>, String> {
    Ok(match rest.next() {
        None => None,
        Some(']') => Some(Member::End),
        Some('\\') => Some(match escape(rest, true)? {
            Escape::Char(char) => Member::Char(char),
            Escape::Class(class) => Member::Class(class),
        }),
        Some(char) => Some(Member::Char(char)),
    })
}

fn push_member(out: &mut String, char: char) {
    if "[]\\^-&~".contains(char) {
        out.push('\\');
        out.push(char);
    } else {
        push_literal(out, char);
    }
}

fn push_literal(out: &mut String, char: char) {
    if char.is_control() {
        out.push_str(&format!("\\x{{{:X}}}", u32::from(char)));
    } else {
        out.push_str(&regex_syntax::escape(char.encode_utf8(&mut [0; 4])));
    }
}

/// Returns a pattern that is to be enforced, or why it cannot be.
pub(super) fn checked(pattern: &str) -> Result<String, String> {
    let pattern = translated(pattern)?;
    regex::check_in_json(&pattern).map_err(|error| error.to_string())?;
    if is_empty(vec![search(&pattern)])? {
        return Err("matches nothing, or nothing that can be written in JSON".to_owned());
    }
    Ok(pattern)
}

/// Returns whether a string can match the pattern and have a length from `min` to `max`.
pub(super) fn has_length(pattern: &str, min: u64, max: Option<u64>) -> Result<bool, String> {
    let max = max.map_or(String::new(), |max| max.to_string());
    is_empty(vec![search(pattern), RegexAst::Regex(format!("(?s:.{{{min},{max}}})"))]).map(|is_empty| !is_empty)
}

/// Returns whether no string matches both; an error if that is too much to find out.
pub(super) fn are_disjoint(one: &str, other: &str) -> Result<bool, String> {
    is_empty(vec![search(one), search(other)])
}

/// Returns whether every string matches.
pub(super) fn is_universal(pattern: &str) -> bool {
    is_empty(vec![RegexAst::Not(Box::new(search(pattern))), RegexAst::Regex("(?s:.*)".to_owned())]).unwrap_or(false)
}

/// Returns whether a string matches a pattern.
pub(super) fn matches(pattern: &str, text: &str) -> Result<bool, String> {
    is_empty(vec![search(pattern), RegexAst::Literal(text.to_owned())]).map(|is_empty| !is_empty)
}

fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))
}

fn is_empty(all: Vec<RegexAst>) -> Result<bool, String> {
    let mut builder = RegexBuilder::new();
    let refused = |error: &dyn std::fmt::Display| error.to_string().lines().next().unwrap_or_default().to_owned();
    let whole = builder.mk(&RegexAst::And(all)).map_err(|error| refused(&error))?;
    if whole == ExprRef::NO_MATCH {
        return Ok(true);
    }
    let too_complex = |_| "is too complicated".to_owned();
    Ok(builder.to_regex_limited(whole, FUEL_MAX).map_err(too_complex)?.always_empty())
}

/// Returns a pattern for all strings but these; `None` if it would be too long.
pub(super) fn all_but(words: &[&str]) -> Option<String> {
    other_than(words, |_| false)
}

/// Returns a pattern for all strings that begin with none of these; `None` if it would be too long.
pub(super) fn not_beginning_with(prefixes: &[&str]) -> Option<String> {
    other_than(prefixes, |path| prefixes.iter().any(|prefix| path.starts_with(prefix)))
}

/// For every beginning of a word: that beginning alone, if it is no word, or with a character that continues no word.
/// Beginnings that are excluded are followed by nothing.
fn other_than(words: &[&str], is_excluded: impl Fn(&str) -> bool) -> Option<String> {
    let mut beginnings: Vec<&str> = words.iter().flat_map(|word| beginnings(word)).collect();
    beginnings.sort_unstable();
    beginnings.dedup();
    let mut alternatives: Vec<String> = Vec::new();
    let mut len = 0;
    for beginning in beginnings {
        if is_excluded(beginning) {
            continue;
        }
        let mut next: Vec<char> =
            words.iter().filter_map(|word| word.strip_prefix(beginning)?.chars().next()).collect();
        next.sort_unstable();
        next.dedup();
        let mut alternative = String::new();
        beginning.chars().for_each(|char| push_literal(&mut alternative, char));
        let mut class = String::from("(?s:.)");
        if !next.is_empty() {
            class = String::from("[^");
            next.iter().for_each(|&char| push_member(&mut class, char));
            class.push(']');
        }
        let optional = if words.contains(&beginning) { "" } else { "?" };
        alternative.push_str(&format!("(?:{class}(?s:.*)){optional}"));
        len += alternative.len();
        if len > MADE_BYTES_MAX {
            return None;
        }
        alternatives.push(alternative);
    }
    (!alternatives.is_empty()).then(|| format!("^(?:{})$", alternatives.join("|")))
}

fn beginnings(word: &str) -> impl Iterator<Item = &str> {
    word.char_indices().map(|(end, _)| &word[..end]).chain([word])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_javascript_writes_differently_is_translated() {
        for (pattern, expected) in [
            ("^a+$", "^a+$"),
            (r"\/\-\_\@\<", r"/\-_@<"),
            (r"[\w-.]", r"[\w\-\.]"),
            ("[[a&&b]", r"[\[a\&\&b]"),
            ("[a-z.-]", r"[a-z\.\-]"),
            ("a{2,3}{x}", r"a{2,3}\{x\}"),
            ("[^]", "(?s:.)"),
            (r"\u00e9\x41\cA", r"éA\x{1}"),
            (r"\ud83d\ude00", "\u{1F600}"),
            (r"[\b]", r"[\x{8}]"),
        ] {
            assert_eq!(translated(pattern).as_deref(), Ok(expected), "{pattern}");
        }
        for pattern in ["(?=a)", "(?!a)", "(?<=a)", r"(a)\1", r"\bword", "[]", r"\ud83d", "[a", "a\\", "[z-a]"] {
            assert!(translated(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn patterns_that_cannot_be_enforced_are_found() {
        assert!(checked("^[a-z]{1,63}$").is_ok());
        for pattern in ["a^b", "^\\u0001$", "(", "*a"] {
            assert!(checked(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_for_all_other_words_matches_just_these() {
        let check = |pattern: &str, text: &str, expected: bool| {
            assert_eq!(matches(pattern, text), Ok(expected), "{text:?} by {pattern}");
        };
        let pattern = all_but(&["foo", "fob", "", "fo[", "é"]).unwrap();
        for text in ["f", "fo", "fooo", "x", "fo]", "foob", "éé", "\n"] {
            check(&pattern, text, true);
        }
        for text in ["foo", "fob", "", "fo[", "é"] {
            check(&pattern, text, false);
        }
        let pattern = not_beginning_with(&["x-", "y"]).unwrap();
        for (text, expected) in [("x", true), ("", true), ("ax-", true), ("x-", false), ("x-a", false), ("ya", false)] {
            check(&pattern, text, expected);
        }
        assert_eq!(all_but(&["a".repeat(20_000).as_str()]), None);
    }

    #[test]
    fn patterns_are_compared() {
        assert_eq!(are_disjoint("^a", "^b"), Ok(true));
        assert_eq!(are_disjoint("^a", "b$"), Ok(false));
        assert!(is_universal(".*") && is_universal("") && !is_universal("^.*$") && !is_universal("a"));
        assert_eq!(has_length("^a{3}$", 4, None), Ok(false));
        assert_eq!(has_length("^a+$", 4, Some(4)), Ok(true));
    }
}
