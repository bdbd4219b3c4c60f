//! Keeping special tokens that a conversation spells out from becoming special tokens.
//!
//! A template mixes its own text with the conversation's and may trim, cut, split or compare the latter, so the
//! conversation cannot simply be bracketed. Instead every place in it where a special token could begin or end is
//! marked with a sentinel, a character that occurs nowhere else. After rendering the sentinels are removed and their
//! positions remembered: no special token may span one. So a special token in the result has neither its first nor its
//! last character from the conversation.
//!
//! Marks must not change what a template does: its operators, methods and filters see texts without them
//! ([`marked_text`](super::marked_text)). The template's own string literals are left unmarked nevertheless, unless a special
//! token could share characters with them: texts without marks are handled faster.

use aho_corasick::{AhoCorasick, MatchKind};
use minijinja::Value;
use serde_json::{Number, Value as Json};

use super::ChatTemplateError;

/// Noncharacters: Unicode reserves them for uses like this one, never for text.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';
/// Where a conversation has this character itself, another noncharacter stands for it while the template renders. They all have
/// the same number of bytes.
pub(super) const SENTINEL: char = *NONCHARACTERS.start();

#[derive(Debug)]
pub(super) struct Guard {
    /// First characters of special tokens, letters and spaces excepted: those would mark every other word.
    openers: Vec<char>,
    /// Last characters, likewise.
    closers: Vec<char>,
    special_tokens: Option<AhoCorasick>,
    template_literals: Option<AhoCorasick>,
}

impl Guard {
    pub(super) fn new(template: &str, special_tokens: &[String]) -> Result<Self, ChatTemplateError> {
        let is_mark = |char: &char| !char.is_alphanumeric() && !char.is_whitespace();
        let unique = |chars: &mut dyn Iterator<Item = char>| {
            let mut chars: Vec<char> = chars.filter(is_mark).collect();
            chars.sort_unstable();
            chars.dedup();
            chars
        };
        let openers = unique(&mut special_tokens.iter().filter_map(|token| token.chars().next()));
        let closers = unique(&mut special_tokens.iter().filter_map(|token| token.chars().next_back()));
        // Literals without any of these characters would not be marked anyway.
        let literals = string_literals(template)
            .into_iter()
            .filter(|literal| literal.contains(&openers[..]) || literal.contains(&closers[..]))
            .filter(|literal| !special_tokens.iter().any(|token| can_touch(token, literal)));
        let template_literals = automaton(MatchKind::LeftmostLongest, literals)?;
        Ok(Self {
            openers,
            closers,
            special_tokens: automaton(MatchKind::Standard, special_tokens.iter().cloned())?,
            template_literals,
        })
    }

    /// The same data for the template to read, with every string and key marked.
    pub(super) fn marked_value(&self, json: &Json, stand_in: char) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(truth) => Value::from(*truth),
            Json::Number(number) => number_value(number),
            Json::String(text) => Value::from(self.mark(text, stand_in)),
            Json::Array(items) => items.iter().map(|item| self.marked_value(item, stand_in)).collect::<Vec<_>>().into(),
            Json::Object(fields) => Value::from_pairs(
                fields.iter().map(|(key, value)| (self.mark(key, stand_in), self.marked_value(value, stand_in))),
            ),
        }
    }

    fn mark(&self, text: &str, stand_in: char) -> String {
        let mut positions = self.positions(text);
        let text = text.replace(SENTINEL, stand_in.encode_utf8(&mut [0; 4]));
        if positions.is_empty() {
            return text;
        }
        positions.sort_unstable();
        positions.dedup();
        let mut marked = String::with_capacity(text.len() + positions.len() * SENTINEL.len_utf8());
        let mut done = 0;
        for position in positions {
            marked.push_str(&text[done..position]);
            marked.push(SENTINEL);
            done = position;
        }
        marked.push_str(&text[done..]);
        marked
    }

    fn positions(&self, text: &str) -> Vec<usize> {
        let mut positions = Vec::new();
        // Tokens that stand there complete are marked whatever the literals say.
        if let Some(tokens) = &self.special_tokens {
            for found in tokens.find_overlapping_iter(text) {
                positions.push(found.start() + text[found.start()..].chars().next().map_or(1, char::len_utf8));
            }
        }
        let mut literals = self.template_literals.iter().flat_map(|literals| literals.find_iter(text)).peekable();
        for (at, char) in text.char_indices() {
            while literals.peek().is_some_and(|literal| literal.end() <= at) {
                literals.next();
            }
            if literals.peek().is_some_and(|literal| literal.start() <= at) {
                continue;
            }
            if self.openers.binary_search(&char).is_ok() {
                positions.push(at + char.len_utf8());
            }
            if self.closers.binary_search(&char).is_ok() {
                positions.push(at);
            }
        }
        positions
    }
}

fn number_value(number: &Number) -> Value {
    match (number.as_i64(), number.as_u64()) {
        (Some(integer), _) => Value::from(integer),
        (None, Some(integer)) => Value::from(integer),
        (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// Whether the token could stand in a text so that it shares characters with the literal.
fn can_touch(token: &str, literal: &str) -> bool {
    let inside = token.contains(literal) || literal.contains(token);
    let mut divisions = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
    inside || divisions.any(|(head, tail)| literal.ends_with(head) || literal.starts_with(tail))
}

fn automaton(
    kind: MatchKind,
    patterns: impl Iterator<Item = String>,
) -> Result<Option<AhoCorasick>, ChatTemplateError> {
    let patterns: Vec<String> = patterns.collect();
    if patterns.is_empty() {
        return Ok(None);
    }
    let built = AhoCorasick::builder().match_kind(kind).build(&patterns);
    let failed = |error| ChatTemplateError::Unguardable { count: patterns.len(), reason: format!("{error}") };
    built.map(Some).map_err(failed)
}

/// What stands for the sentinel in texts that contain it: a noncharacter that they do not contain, such as the sentinel itself.
pub(super) fn stand_in<'j>(data: impl IntoIterator<Item = &'j Json>) -> Option<char> {
    let mut used = 0u32;
    data.into_iter().for_each(|json| note_noncharacters(json, &mut used));
    NONCHARACTERS.enumerate().find(|(index, _)| used & (1 << index) == 0).map(|(_, unused)| unused)
}

fn note_noncharacters(json: &Json, used: &mut u32) {
    let mut note = |text: &str| {
        let found = text.chars().filter(|char| NONCHARACTERS.contains(char));
        found.for_each(|char| *used |= 1 << (char as u32 - SENTINEL as u32));
    };
    match json {
        Json::String(text) => note(text),
        Json::Array(items) => items.iter().for_each(|item| note_noncharacters(item, used)),
        Json::Object(fields) => {
            fields.keys().for_each(|key| note(key));
            fields.values().for_each(|value| note_noncharacters(value, used));
        }
        _ => {}
    }
}

/// The text without its sentinels, and where they were.
pub(super) fn remove_sentinels(marked: &str, stand_in: char) -> (String, Vec<usize>) {
    let mut text = String::with_capacity(marked.len());
    let mut positions = Vec::new();
    let mut parts = marked.split(SENTINEL);
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        positions.push(text.len());
        text.push_str(part);
    }
    positions.dedup();
    if stand_in != SENTINEL {
        text = text.replace(stand_in, SENTINEL.encode_utf8(&mut [0; 4]));
    }
    (text, positions)
}

/// The string literals inside the template's tags.
fn string_literals(template: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let close = if rest[at..].starts_with("{{") { "}}" } else { "%}" };
        rest = &rest[at + 2..];
        while !rest.is_empty() && !rest.starts_with(close) {
            let mut chars = rest.chars();
            let first = chars.next().unwrap_or_default();
            rest = chars.as_str();
            if matches!(first, '\'' | '"') {
                let (literal, after) = read_literal(rest, first);
                literals.push(literal);
                rest = after;
            }
        }
    }
    literals
}

/// A literal up to its closing quote, with its escapes resolved, and what follows.
fn read_literal(source: &str, quote: char) -> (String, &str) {
    let mut literal = String::new();
    let mut chars = source.chars();
    while let Some(char) = chars.next() {
        match char {
            _ if char == quote => break,
            '\\' => match chars.next() {
                Some('n') => literal.push('\n'),
                Some('t') => literal.push('\t'),
                Some('r') => literal.push('\r'),
                Some(other) => literal.push(other),
                None => break,
            },
            _ => literal.push(char),
        }
    }
    (literal, chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(template: &str, text: &str) -> String {
        let guard = Guard::new(template, &["<|im_end|>".into(), "[INST]".into()]).unwrap();
        guard.mark(text, '\u{FDD1}').replace(SENTINEL, "#")
    }

    #[test]
    fn places_where_a_token_could_begin_or_end_are_marked() {
        assert_eq!(mark("", "plain words, no marks"), "plain words, no marks");
        assert_eq!(mark("", "a<b>c [x]"), "a<#b#>c [#x#]");
        assert_eq!(mark("", "<|im_end|>"), "<#|im_end|#>");
    }

    #[test]
    fn literals_of_the_template_stay_recognisable() {
        let template = "{{ content.split('</think>') }}{% if '<|im_end|>' in x %}";
        assert_eq!(mark(template, "<a></think>"), "<#a#></think>");
        assert_eq!(mark(template, "<|im_end|>"), "<#|im_end|#>");
    }

    #[test]
    fn literals_that_a_token_could_overlap_are_marked() {
        let template = r#"{{ '\n<|' ~ x ~ '|>\n' ~ '<|' ~ 'a[INST]' ~ '[' }}"#;
        assert_eq!(mark(template, "\n<|im_"), "\n<#|im_");
        assert_eq!(mark(template, "end|>\n"), "end|#>\n");
        assert_eq!(mark(template, "a[INST]"), "a[#INST#]");
    }

    #[test]
    fn removing_sentinels_tells_where_they_were() {
        let removed = |marked: &str| remove_sentinels(&marked.replace('#', "\u{FDD0}"), '\u{FDD1}');
        assert_eq!(removed("a<#|#>"), ("a<|>".into(), vec![2, 3]));
        assert_eq!(removed(""), ("".into(), vec![]));
        assert_eq!(removed("\u{FDD1}<#"), ("\u{FDD0}<".into(), vec![4]));
    }

    #[test]
    fn another_character_stands_for_a_sentinel_in_the_conversation() {
        let text = Json::String("\u{FDD0}\u{FDD2}".into());
        assert_eq!(stand_in([&text]), Some('\u{FDD1}'));
        assert_eq!(mark("", "\u{FDD0}<"), "\u{FDD1}<#");
        let all = Json::String(NONCHARACTERS.collect());
        assert_eq!(stand_in([&all]), None);
    }

    #[test]
    fn literals_are_read_only_inside_tags() {
        let template = r#"don't {{ "a\n" ~ 'b"c' }} isn't {%- if x == 'd}}' %}"#;
        assert_eq!(string_literals(template), ["a\n", "b\"c", "d}}"]);
        assert_eq!(string_literals("{{ 'unclosed"), ["unclosed"]);
    }
}
