//! Reading GBNF.

use std::collections::HashMap;

use super::super::GrammarError;
use super::super::limits::GRAMMAR_DEPTH_MAX;
use super::{CharSet, Node, REPETITIONS_MAX, Rules, WHAT, syntax_error};

pub(super) fn rules(source: &str) -> Result<Rules, GrammarError> {
    let mut reader = Reader { source, at: 0, depth: 0, ids: HashMap::new(), rules: Vec::new() };
    reader.skip_space(Newlines::Skipped);
    while reader.at < source.len() {
        reader.rule()?;
        reader.skip_space(Newlines::Skipped);
    }
    reader.finish()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Newlines {
    Skipped,
    /// They end a rule.
    Kept,
}

struct Reader<'s> {
    source: &'s str,
    at: usize,
    depth: usize,
    ids: HashMap<&'s str, usize>,
    rules: Vec<Entry<'s>>,
}

struct Entry<'s> {
    name: &'s str,
    /// Where the name was met first, until the rule is defined.
    line: usize,
    body: Option<Node>,
}

impl<'s> Reader<'s> {
    fn rule(&mut self) -> Result<(), GrammarError> {
        let line = self.line();
        let id = self.name().ok_or_else(|| self.error("a rule must begin with a name"))?;
        self.skip_space(Newlines::Kept);
        if !self.take("::=") {
            return Err(self.error(format!("expected ::= after the name {:?}", self.rules[id].name)));
        }
        self.skip_space(Newlines::Skipped);
        let body = self.alternatives(Newlines::Kept)?;
        if !self.rest().is_empty() && !self.rest().starts_with(['\n', '\r']) {
            return Err(self.error(format!("unexpected {:?}", self.next_char())));
        }
        if self.rules[id].body.is_some() {
            return Err(syntax_error(line, format!("the rule {:?} is defined twice", self.rules[id].name)));
        }
        self.rules[id].line = line;
        self.rules[id].body = Some(body);
        Ok(())
    }

    fn alternatives(&mut self, newlines: Newlines) -> Result<Node, GrammarError> {
        let mut options = vec![self.sequence(newlines)?];
        while self.continues_with_alternative(newlines) {
            options.push(self.sequence(newlines)?);
        }
        Ok(if options.len() == 1 { options.swap_remove(0) } else { Node::Either(options) })
    }

    /// An alternative may begin on a new line, as a rule never begins with `|`.
    fn continues_with_alternative(&mut self, newlines: Newlines) -> bool {
        let start = self.at;
        self.skip_space(Newlines::Skipped);
        if self.take("|") {
            self.skip_space(Newlines::Skipped);
            return true;
        }
        if newlines == Newlines::Kept {
            self.at = start;
        }
        false
    }

    fn sequence(&mut self, newlines: Newlines) -> Result<Node, GrammarError> {
        let mut parts = Vec::new();
        loop {
            let part = match self.next_char() {
                Some('"') => self.string()?,
                Some('[') => Node::Chars(self.class()?),
                Some('.') => {
                    self.at += 1;
                    Node::Chars(CharSet::everything())
                }
                Some('(') => self.group()?,
                Some('*' | '+' | '?' | '{') => {
                    return Err(self.error("there is nothing before this that could be repeated"));
                }
                Some('<' | '!') => {
                    return Err(self.error("tokens cannot be named; write the text that is meant as a string"));
                }
                _ => match self.name() {
                    Some(id) => Node::Rule(id),
                    None => break,
                },
            };
            self.skip_space(newlines);
            parts.push(self.repeated(part, newlines)?);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Node::Sequence(parts) })
    }

    fn group(&mut self) -> Result<Node, GrammarError> {
        self.depth += 1;
        if self.depth > GRAMMAR_DEPTH_MAX {
            return Err(GrammarError::TooDeep { what: WHAT, max: GRAMMAR_DEPTH_MAX });
        }
        let opened = self.line();
        self.at += 1;
        self.skip_space(Newlines::Skipped);
        let inner = self.alternatives(Newlines::Skipped)?;
        if !self.take(")") {
            return Err(self.error(format!("the group opened in line {opened} is not closed by )")));
        }
        self.depth -= 1;
        Ok(inner)
    }

    fn repeated(&mut self, mut part: Node, newlines: Newlines) -> Result<Node, GrammarError> {
        loop {
            let (min, max) = match self.next_char() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(part),
            };
            self.at += 1;
            self.skip_space(newlines);
            part = match (min, max) {
                (_, Some(0)) => Node::Sequence(Vec::new()),
                (1, Some(1)) => part,
                _ => Node::Repeat { of: Box::new(part), min, max },
            };
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`; stops before the closing brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.at += 1;
        let min = self.number()?;
        let max = if self.take(",") {
            self.skip_space(Newlines::Kept);
            if self.next_char() == Some('}') { None } else { Some(self.number()?) }
        } else {
            Some(min)
        };
        if self.next_char() != Some('}') {
            return Err(self.error("expected } after the number of repetitions"));
        }
        match max {
            Some(max) if max < min => Err(self.error(format!("at least {min} and at most {max} repetitions"))),
            _ if min.max(max.unwrap_or(0)) > REPETITIONS_MAX => {
                Err(self.error(format!("more than {REPETITIONS_MAX} repetitions")))
            }
            _ => Ok((min, max)),
        }
    }

    fn number(&mut self) -> Result<u32, GrammarError> {
        self.skip_space(Newlines::Kept);
        let digits = self.rest().find(|char: char| !char.is_ascii_digit()).unwrap_or(self.rest().len());
        let number = self.rest()[..digits].parse().map_err(|_| self.error("expected a number of repetitions"))?;
        self.at += digits;
        self.skip_space(Newlines::Kept);
        Ok(number)
    }

    fn string(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let mut chars = Vec::new();
        while !self.take("\"") {
            chars.push(Node::Chars(CharSet::single(self.literal_char("string")?)));
        }
        Ok(if chars.len() == 1 { chars.swap_remove(0) } else { Node::Sequence(chars) })
    }

    fn class(&mut self) -> Result<CharSet, GrammarError> {
        self.at += 1;
        let is_negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let first = self.literal_char("character class")?;
            let last = match self.rest().strip_prefix('-') {
                Some(rest) if !rest.starts_with(']') => {
                    self.at += 1;
                    self.literal_char("character class")?
                }
                _ => first,
            };
            if last < first {
                return Err(self.error(format!("the range {first:?}-{last:?} runs backwards")));
            }
            ranges.push((first as u32, last as u32));
        }
        let set = CharSet::of(ranges);
        let set = if is_negated { set.complement() } else { set };
        if set.is_empty() { Err(self.error("the character class matches nothing")) } else { Ok(set) }
    }

    fn literal_char(&mut self, what: &str) -> Result<char, GrammarError> {
        let char = self.next_char().ok_or_else(|| self.error(format!("the {what} does not end")))?;
        self.at += char.len_utf8();
        if char != '\\' {
            return Ok(char);
        }
        let escaped = self.next_char().ok_or_else(|| self.error(format!("the {what} does not end")))?;
        self.at += escaped.len_utf8();
        match escaped {
            'x' => self.code_point(2),
            'u' => self.code_point(4),
            'U' => self.code_point(8),
            't' => Ok('\t'),
            'r' => Ok('\r'),
            'n' => Ok('\n'),
            '\\' | '"' | '[' | ']' | '-' | '^' => Ok(escaped),
            _ => Err(self.error(format!("unknown escape \\{escaped}"))),
        }
    }

    fn code_point(&mut self, digits: usize) -> Result<char, GrammarError> {
        let hexadecimal = self.rest().get(..digits).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = hexadecimal.and_then(|text| u32::from_str_radix(text, 16).ok());
        let char = code.and_then(char::from_u32);
        let char =
            char.ok_or_else(|| self.error(format!("the escape needs {digits} hexadecimal digits of a character")))?;
        self.at += digits;
        Ok(char)
    }

    fn name(&mut self) -> Option<usize> {
        let is_part = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        let len = self.rest().find(|char| !is_part(char)).unwrap_or(self.rest().len());
        if len == 0 {
            return None;
        }
        let name = &self.source[self.at..self.at + len];
        let line = self.line();
        self.at += len;
        Some(*self.ids.entry(name).or_insert_with(|| {
            self.rules.push(Entry { name, line, body: None });
            self.rules.len() - 1
        }))
    }

    fn finish(self) -> Result<Rules, GrammarError> {
        let missing = || syntax_error(1, "there is no rule named \"root\", with which the grammar would begin");
        let root = *self.ids.get("root").ok_or_else(missing)?;
        let mut rules = Rules { bodies: Vec::new(), lines: Vec::new(), names: Vec::new(), root };
        for entry in self.rules {
            let undefined = || syntax_error(entry.line, format!("the rule {:?} is not defined", entry.name));
            rules.bodies.push(entry.body.ok_or_else(undefined)?);
            rules.lines.push(entry.line);
            rules.names.push(entry.name.to_owned());
        }
        Ok(rules)
    }

    fn skip_space(&mut self, newlines: Newlines) {
        loop {
            match self.next_char() {
                Some(' ' | '\t') => self.at += 1,
                Some('\n' | '\r') if newlines == Newlines::Skipped => self.at += 1,
                Some('#') => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let is_there = self.rest().starts_with(text);
        if is_there {
            self.at += text.len();
        }
        is_there
    }

    fn next_char(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn line(&self) -> usize {
        self.source[..self.at].matches('\n').count() + 1
    }

    fn error(&self, problem: impl Into<String>) -> GrammarError {
        syntax_error(self.line(), problem)
    }
}
