//! Finding tool calls in text as it is generated.

use super::ToolFormat;
use super::format::{CALL_CLOSES, CALL_OPENS};

/// A name has 64 characters; the rest of a call's head is spaces.
const HEAD_BYTES_MAX: usize = 1024;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolPiece {
    Text(String),
    /// A call begins; calls are numbered from 0.
    Call {
        index: usize,
        name: String,
    },
    /// More of the call's arguments: JSON text, which parses when all of it is put together.
    Arguments {
        index: usize,
        delta: String,
    },
    /// The call's arguments are complete. A call that the answer's end cut off has none.
    CallEnd {
        index: usize,
    },
}

/// Takes one answer apart into text and calls, however its pieces are divided.
///
/// What may turn out to be the beginning of a call is held back. What looked like a call but is none is text.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    format: ToolFormat,
    state: State,
    /// Text that is not decided yet.
    held: String,
    calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning of an answer in which only the beginning can be a call.
    Start,
    Text,
    /// Nothing but text from here on.
    TextOnly,
    /// Behind an opening tag; `held` begins with it.
    Head,
    Arguments(Nesting),
    /// Behind the arguments: the brace that closes the call.
    Brace,
    /// The tag that closes the call.
    Closing,
    /// Behind a call: whitespace is dropped unless text follows.
    Between,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Nesting {
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl ToolCallParser {
    pub fn new(format: ToolFormat) -> Self {
        let state = if format == ToolFormat::BareJson { State::Start } else { State::Text };
        Self { format, state, held: String::new(), calls: 0 }
    }

    /// Adds generated text and returns what is decided.
    pub fn push(&mut self, text: &str) -> Vec<ToolPiece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// The answer is over: what was held back is text, unless it belongs to a call that has begun.
    pub fn finish(&mut self) -> Vec<ToolPiece> {
        let mut pieces = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Start | State::Text | State::TextOnly | State::Head => emit(&mut pieces, held),
            State::Arguments(_) | State::Brace | State::Closing | State::Between => {}
        }
        self.state = State::TextOnly;
        pieces
    }

    /// Number of calls that have begun.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Decides one thing; whether there may be more to decide.
    fn step(&mut self, pieces: &mut Vec<ToolPiece>) -> bool {
        if self.held.is_empty() {
            return false;
        }
        match self.state {
            State::TextOnly => {
                emit(pieces, std::mem::take(&mut self.held));
                false
            }
            State::Text => self.text(pieces),
            State::Start => self.head("", pieces),
            State::Head => self.head(CALL_OPENS, pieces),
            State::Arguments(nesting) => self.arguments(nesting, pieces),
            State::Brace if self.format == ToolFormat::BareJson => self.expect("}", State::Between),
            State::Brace => self.expect("}", State::Closing),
            State::Closing => self.expect(CALL_CLOSES, State::Between),
            State::Between => self.between(),
        }
    }

    fn text(&mut self, pieces: &mut Vec<ToolPiece>) -> bool {
        if let Some(at) = self.held.find(CALL_OPENS) {
            let rest = self.held.split_off(at);
            emit(pieces, std::mem::replace(&mut self.held, rest));
            self.state = State::Head;
            return true;
        }
        let undecided = (1..CALL_OPENS.len()).rev().find(|&len| self.held.ends_with(&CALL_OPENS[..len])).unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - undecided);
        emit(pieces, std::mem::replace(&mut self.held, rest));
        false
    }

    fn head(&mut self, tag: &str, pieces: &mut Vec<ToolPiece>) -> bool {
        match Head::read(&self.held[tag.len()..], self.format.arguments_key()) {
            Head::Incomplete if self.held.len() <= HEAD_BYTES_MAX => false,
            Head::Complete { name, arguments_at } if tag.len() + arguments_at <= HEAD_BYTES_MAX => {
                self.held.drain(..tag.len() + arguments_at);
                pieces.push(ToolPiece::Call { index: self.calls, name });
                self.calls += 1;
                self.state = State::Arguments(Nesting::default());
                true
            }
            Head::Incomplete | Head::Complete { .. } | Head::Malformed => {
                // The tag was text; another call may follow it.
                let rest = self.held.split_off(tag.len());
                emit(pieces, std::mem::replace(&mut self.held, rest));
                self.state = if tag.is_empty() { State::TextOnly } else { State::Text };
                true
            }
        }
    }

    fn arguments(&mut self, mut nesting: Nesting, pieces: &mut Vec<ToolPiece>) -> bool {
        let index = self.calls - 1;
        let end = self.held.bytes().position(|byte| nesting.closes_with(byte));
        let rest = end.map_or(String::new(), |end| self.held.split_off(end + 1));
        pieces.push(ToolPiece::Arguments { index, delta: std::mem::replace(&mut self.held, rest) });
        self.state = State::Arguments(nesting);
        if end.is_some() {
            pieces.push(ToolPiece::CallEnd { index });
            self.state = State::Brace;
        }
        end.is_some()
    }

    /// Passes over `expected` and the whitespace before it. If something else stands there, the call is over anyway.
    fn expect(&mut self, expected: &str, next: State) -> bool {
        let start = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[start..];
        if rest.starts_with(expected) {
            self.held.drain(..start + expected.len());
        } else if expected.starts_with(rest) {
            return false;
        }
        self.state = next;
        true
    }

    fn between(&mut self) -> bool {
        let is_blank = self.held.trim_start().is_empty();
        if is_blank {
            return false;
        }
        if self.held.trim_start().starts_with('<') {
            let rest = self.held.trim_start();
            if rest.len() < CALL_OPENS.len() && CALL_OPENS.starts_with(rest) {
                return false;
            }
            if rest.starts_with(CALL_OPENS) {
                self.held.drain(..self.held.len() - rest.len());
            }
        }
        self.state = if self.format == ToolFormat::BareJson { State::TextOnly } else { State::Text };
        true
    }
}

impl Nesting {
    /// Whether the arguments end with this byte.
    fn closes_with(&mut self, byte: u8) -> bool {
        if self.is_in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// The part of a call up to its arguments.
enum Head {
    Incomplete,
    Malformed,
    Complete { name: String, arguments_at: usize },
}

impl Head {
    fn read(text: &str, key: &str) -> Self {
        Self::try_read(text, key).unwrap_or_else(|unread| if unread { Self::Malformed } else { Self::Incomplete })
    }

    /// The error says whether something unexpected was found, or nothing yet.
    fn try_read(text: &str, key: &str) -> Result<Self, bool> {
        let mut rest = text;
        for expected in ["{", "\"name\"", ":"] {
            rest = after(rest, expected)?;
        }
        let (name, behind) = string(rest)?;
        rest = behind;
        for expected in [",", &format!("\"{key}\""), ":"] {
            rest = after(rest, expected)?;
        }
        let arguments = rest.trim_start();
        after(arguments, "{")?;
        Ok(Self::Complete { name, arguments_at: text.len() - arguments.len() })
    }
}

fn after<'t>(text: &'t str, expected: &str) -> Result<&'t str, bool> {
    let text = text.trim_start();
    text.strip_prefix(expected).ok_or(!expected.starts_with(text))
}

/// A JSON string with content at the beginning of `text`.
fn string(text: &str) -> Result<(String, &str), bool> {
    let text = text.trim_start();
    after(text, "\"")?;
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    let (string, rest) = text.split_at(end.ok_or(false)? + 2);
    let name: String = serde_json::from_str(string).map_err(|_| true)?;
    if name.is_empty() { Err(true) } else { Ok((name, rest)) }
}

fn emit(pieces: &mut Vec<ToolPiece>, text: String) {
    if !text.is_empty() {
        pieces.push(ToolPiece::Text(text));
    }
}

#[cfg(test)]
mod tests;
