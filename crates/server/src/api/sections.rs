//! Splits an answer into sections: its reasoning, texts and tool calls, in order.
//!
//! Anthropic's messages and OpenAI's responses both have such lists, each with its own terms for the same changes.

use ruvllm_runtime::{Piece, ToolCall};

use crate::api::generation::Generation;
use crate::error::ApiError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// What the model wrote for itself before its answer.
    Reasoning(String),
    Text(String),
    Call(ToolCall),
}

/// How a piece changed the section of an index.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Opened(usize),
    /// More text, or more of the arguments.
    Grew(usize, String),
    Closed(usize),
}

/// The sections so far; the last one is open.
#[derive(Debug, Default)]
pub(crate) struct Sections(Vec<Section>);

impl Section {
    /// As it was when opened.
    pub(crate) fn opening(&self) -> Self {
        match self {
            Self::Reasoning(_) => Self::Reasoning(String::new()),
            Self::Text(_) => Self::Text(String::new()),
            Self::Call(call) => Self::Call(ToolCall { arguments: String::new(), ..call.clone() }),
        }
    }

    /// Whether the section is complete although the answer was cut off in it.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::Reasoning(_) | Self::Text(_) => false,
            Self::Call(call) => is_json(&call.arguments),
        }
    }
}

/// Whether arguments are complete: the start of an object is not valid JSON.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
}

impl Sections {
    /// Splits a whole answer.
    pub(crate) async fn of(generation: &mut Generation) -> Result<Self, ApiError> {
        let mut sections = Self::default();
        while let Some(part) = generation.next().await {
            if let Some(piece) = part?.piece {
                sections.push(piece);
            }
        }
        Ok(sections)
    }

    pub(crate) fn push(&mut self, piece: Piece) -> Vec<Change> {
        match (piece, self.0.last_mut()) {
            (Piece::Reasoning(more), Some(Section::Reasoning(text))) => {
                text.push_str(&more);
                vec![Change::Grew(self.0.len() - 1, more)]
            }
            (Piece::Reasoning(text), _) => {
                let mut changes = self.open(Section::Reasoning(text.clone()));
                changes.push(Change::Grew(self.0.len() - 1, text));
                changes
            }
            (Piece::Text(text), _) if text.is_empty() => Vec::new(),
            (Piece::Text(more), Some(Section::Text(text))) => {
                text.push_str(&more);
                vec![Change::Grew(self.0.len() - 1, more)]
            }
            (Piece::Text(text), _) => {
                let mut changes = self.open(Section::Text(text.clone()));
                changes.push(Change::Grew(self.0.len() - 1, text));
                changes
            }
            (Piece::ToolCall { id, name, .. }, _) => {
                self.open(Section::Call(ToolCall { id, name, arguments: String::new() }))
            }
            (Piece::Arguments { text: more, .. }, Some(Section::Call(call))) if !more.is_empty() => {
                call.arguments.push_str(&more);
                vec![Change::Grew(self.0.len() - 1, more)]
            }
            // Arguments directly follow their call.
            (Piece::Arguments { .. }, _) => Vec::new(),
        }
    }

    pub(crate) fn open(&mut self, section: Section) -> Vec<Change> {
        let mut changes = self.close();
        changes.push(Change::Opened(self.0.len()));
        self.0.push(section);
        changes
    }

    /// Adds an empty text where no answer was generated, for APIs that expect one.
    pub(crate) fn open_if_none(&mut self) -> Vec<Change> {
        let has_answer = self.0.iter().any(|section| !matches!(section, Section::Reasoning(_)));
        if has_answer { Vec::new() } else { self.open(Section::Text(String::new())) }
    }

    /// Closes the last section.
    pub(crate) fn close(&mut self) -> Vec<Change> {
        self.0.len().checked_sub(1).map(Change::Closed).into_iter().collect()
    }

    pub(crate) fn all(&self) -> &[Section] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_calls_keep_their_order_and_each_is_opened_and_closed_once() {
        let call = |index, name: &str| Piece::ToolCall { index, id: format!("call_{index}"), name: name.to_owned() };
        let arguments = |index, text: &str| Piece::Arguments { index, text: text.to_owned() };
        let text = |text: &str| Piece::Text(text.to_owned());
        let pieces = [
            text(""),
            text("Let me"),
            text(" look."),
            call(0, "look"),
            arguments(0, "{\"a\""),
            arguments(0, ": 1}"),
            call(1, "wait"),
            arguments(1, "{}"),
            text("Done"),
        ];
        let mut sections = Sections::default();
        let mut changes: Vec<Change> = pieces.into_iter().flat_map(|piece| sections.push(piece)).collect();
        changes.extend(sections.close());
        let grew = |index, text: &str| Change::Grew(index, text.to_owned());
        let expected = [
            Change::Opened(0),
            grew(0, "Let me"),
            grew(0, " look."),
            Change::Closed(0),
            Change::Opened(1),
            grew(1, "{\"a\""),
            grew(1, ": 1}"),
            Change::Closed(1),
            Change::Opened(2),
            grew(2, "{}"),
            Change::Closed(2),
            Change::Opened(3),
            grew(3, "Done"),
            Change::Closed(3),
        ];
        assert_eq!(changes, expected);
        assert_eq!(sections.all()[0], Section::Text("Let me look.".to_owned()));
        assert!(sections.all()[1].is_whole());
    }

    #[test]
    fn arguments_are_whole_when_they_are_json() {
        let call =
            |arguments: &str| ToolCall { id: String::new(), name: String::new(), arguments: arguments.to_owned() };
        for (arguments, is_whole) in [("{}", true), ("{\"a\": 1e999}", true), ("{\"a\": \"}", false), ("", false)] {
            assert_eq!(Section::Call(call(arguments)).is_whole(), is_whole, "{arguments}");
        }
    }
}
