//! Lark grammars from users: bounded, and without what only the caller of llguidance may say.
//!
//! Refused are tokens by name or number (a grammar describes text), options for the engine, other grammars by
//! reference, and rule attributes that hide text or change sampling. Schemas after `%json` go the way of all schemas.

use serde_json::Value;

use super::limits::GRAMMAR_DEPTH_MAX;
use super::{GrammarError, Strictness};
use super::{regex, schema};

const WHAT: &str = "Lark grammar";

/// The grammar, checked, for llguidance.
pub(super) fn checked(source: &str) -> Result<String, GrammarError> {
    let mut scanner = Scanner { source, at: 0, depth: 0, out: String::with_capacity(source.len()) };
    while scanner.at < source.len() {
        scanner.step()?;
    }
    Ok(scanner.out)
}

struct Scanner<'s> {
    source: &'s str,
    at: usize,
    depth: usize,
    out: String,
}

impl<'s> Scanner<'s> {
    fn step(&mut self) -> Result<(), GrammarError> {
        let rest = &self.source[self.at..];
        let len = match rest.as_bytes()[0] {
            b'#' => line_len(rest),
            b'/' if rest.starts_with("//") => line_len(rest),
            b'"' => self.quoted(rest, '"', "string")?,
            b'/' => self.regex(rest)?,
            b'%' => return self.directive(rest),
            b'<' => return Err(self.error("tokens cannot be named; write the text that is meant as a string")),
            b'@' => return Err(self.error("other grammars cannot be referred to")),
            b'(' | b'[' | b'{' => self.open()?,
            b')' | b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                1
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' => self.name(rest)?,
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        self.copy(len);
        Ok(())
    }

    fn copy(&mut self, len: usize) {
        self.out.push_str(&self.source[self.at..self.at + len]);
        self.at += len;
    }

    fn open(&mut self) -> Result<usize, GrammarError> {
        self.depth += 1;
        if self.depth > GRAMMAR_DEPTH_MAX {
            return Err(GrammarError::TooDeep { what: WHAT, max: GRAMMAR_DEPTH_MAX });
        }
        Ok(1)
    }

    fn quoted(&self, rest: &str, quote: char, what: &str) -> Result<usize, GrammarError> {
        let mut is_escaped = false;
        for (at, char) in rest.char_indices().skip(1) {
            match char {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                _ if char == quote => return Ok(at + 1),
                _ => {}
            }
        }
        Err(self.error(&format!("the {what} does not end")))
    }

    fn regex(&self, rest: &str) -> Result<usize, GrammarError> {
        let len = self.quoted(rest, '/', "regular expression")?;
        regex::check(&rest[1..len - 1]).map_err(|error| self.error(&error.to_string()))?;
        Ok(len)
    }

    fn name(&self, rest: &str) -> Result<usize, GrammarError> {
        let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
        let len = rest.find(|char| !is_part(char)).unwrap_or(rest.len());
        let is_attribute = rest[len..].trim_start().starts_with('=');
        if is_attribute && ["stop", "stop_capture", "max_tokens", "temperature"].contains(&&rest[..len]) {
            return Err(self.error(&format!("the attribute {:?} is not supported", &rest[..len])));
        }
        Ok(len)
    }

    fn directive(&mut self, rest: &'s str) -> Result<(), GrammarError> {
        let word_len = rest[1..].find(|char: char| !char.is_ascii_alphabetic()).map_or(rest.len(), |len| len + 1);
        match &rest[..word_len] {
            "%json" => {
                let mut values = serde_json::Deserializer::from_str(&rest[word_len..]).into_iter::<Value>();
                let value = values.next().ok_or_else(|| self.error("%json needs a schema"))?;
                let value = value.map_err(|error| self.error(&format!("the schema after %json: {error}")))?;
                let end = word_len + values.byte_offset();
                let prepared = schema::prepared(&value, Strictness::Strict, schema::Effort::FULL)
                    .map_err(|error| self.error(&error.to_string()))?;
                self.out.push_str(&format!("%json {}", prepared.schema));
                self.at += end;
            }
            "%ignore" | "%import" => self.copy(word_len),
            other => return Err(self.error(&format!("{other:?} is not supported"))),
        }
        Ok(())
    }

    fn error(&self, problem: &str) -> GrammarError {
        let line = self.source[..self.at].matches('\n').count() + 1;
        GrammarError::Syntax { what: WHAT, line, problem: problem.to_owned() }
    }
}

fn line_len(rest: &str) -> usize {
    rest.find('\n').unwrap_or(rest.len())
}
