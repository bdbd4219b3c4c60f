//! Reasoning: what a model writes for itself before its answer, between two markers.

mod format;

pub use format::ReasoningFormat;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReasoningPiece {
    Reasoning(String),
    Text(String),
}

/// Where in an answer the text is that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningPhase {
    /// Nothing but whitespace has come.
    Start,
    Reasoning,
    /// Behind the closing marker: whitespace is dropped.
    Closed,
    Answer,
}

/// Takes one answer apart into reasoning and what follows it, however its pieces are divided.
///
/// Only an answer's beginning can be reasoning: markers behind it are text. What may turn out to be a marker is held back.
#[derive(Clone, Debug)]
pub struct ReasoningParser {
    format: ReasoningFormat,
    phase: ReasoningPhase,
    /// Text that is not decided yet: whitespace and the beginning of a marker.
    held: String,
    /// Whether any reasoning was found yet.
    has_reasoned: bool,
}

impl ReasoningParser {
    /// Starts before the answer. `is_open` is whether the prompt ends inside the reasoning.
    pub fn new(format: ReasoningFormat, is_open: bool) -> Self {
        let phase = if is_open { ReasoningPhase::Reasoning } else { ReasoningPhase::Start };
        Self { format, phase, held: String::new(), has_reasoned: false }
    }

    pub fn format(&self) -> &ReasoningFormat {
        &self.format
    }

    pub fn phase(&self) -> ReasoningPhase {
        self.phase
    }

    /// Adds generated text and returns what is decided.
    pub fn push(&mut self, text: &str) -> Vec<ReasoningPiece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while !self.held.is_empty() && self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer: what was held back is what it stands in.
    pub fn finish(&mut self) -> Vec<ReasoningPiece> {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return Vec::new();
        }
        match self.phase {
            ReasoningPhase::Reasoning => vec![ReasoningPiece::Reasoning(held)],
            ReasoningPhase::Closed => Vec::new(),
            ReasoningPhase::Start | ReasoningPhase::Answer => vec![ReasoningPiece::Text(held)],
        }
    }

    /// Decides one thing; returns whether there may be more to decide.
    fn step(&mut self, pieces: &mut Vec<ReasoningPiece>) -> bool {
        match self.phase {
            ReasoningPhase::Start | ReasoningPhase::Closed => self.enter(),
            ReasoningPhase::Reasoning => self.reason(pieces),
            ReasoningPhase::Answer => {
                pieces.push(ReasoningPiece::Text(std::mem::take(&mut self.held)));
                false
            }
        }
    }

    /// Passes over the marker that comes next, if one does.
    fn enter(&mut self) -> bool {
        let text = self.held.trim_start();
        let markers = self.format.markers_in(self.phase);
        let found = markers.iter().find_map(|(marker, phase)| Some((text.strip_prefix(marker)?, *phase)));
        if let Some((rest, phase)) = found {
            self.held = rest.to_owned();
            self.phase = phase;
            return true;
        }
        if markers.iter().any(|(marker, _)| marker.starts_with(text)) {
            return false;
        }
        if self.phase == ReasoningPhase::Closed {
            self.held.drain(..self.held.len() - text.len());
            if self.held.is_empty() {
                return false;
            }
        }
        self.phase = ReasoningPhase::Answer;
        true
    }

    fn reason(&mut self, pieces: &mut Vec<ReasoningPiece>) -> bool {
        let closes = self.format.closes();
        let (end, behind) = match self.held.find(closes) {
            Some(at) => (at, Some(at + closes.len())),
            None => {
                let begins = |len: &usize| self.held.ends_with(&closes[..*len]);
                (self.held.len() - (1..closes.len()).rev().find(begins).unwrap_or(0), None)
            }
        };
        // Whitespace around the reasoning belongs to the markers.
        let decided = self.held[..end].trim_end().len();
        let reasoning = &self.held[..decided];
        let reasoning = if self.has_reasoned { reasoning } else { reasoning.trim_start() };
        if !reasoning.is_empty() {
            self.has_reasoned = true;
            pieces.push(ReasoningPiece::Reasoning(reasoning.to_owned()));
        }
        self.held.drain(..behind.unwrap_or(decided));
        if behind.is_some() {
            self.phase = ReasoningPhase::Closed;
        }
        behind.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format() -> ReasoningFormat {
        ReasoningFormat::in_plain_text("</think>")
    }

    /// Reasoning and text of an answer that comes in pieces of `size` characters.
    fn parse(format: ReasoningFormat, answer: &str, is_open: bool, size: usize) -> (String, String) {
        let mut parser = ReasoningParser::new(format, is_open);
        let characters: Vec<char> = answer.chars().collect();
        let mut pieces: Vec<ReasoningPiece> =
            characters.chunks(size).flat_map(|chunk| parser.push(&chunk.iter().collect::<String>())).collect();
        pieces.extend(parser.finish());
        let mut found = (String::new(), String::new());
        for piece in pieces {
            match piece {
                ReasoningPiece::Reasoning(text) => found.0.push_str(&text),
                ReasoningPiece::Text(text) => found.1.push_str(&text),
            }
        }
        found
    }

    #[test]
    fn an_answer_is_divided_the_same_however_it_comes() {
        for (answer, is_open, reasoning, text) in [
            ("<think>\nWhy? Because.\n</think>\n\nBlue.", false, "Why? Because.", "Blue."),
            ("Why? Because.\n</think>\n\nBlue.", true, "Why? Because.", "Blue."),
            ("  <think></think>Blue.", false, "", "Blue."),
            ("Blue, not <think>red</think>.", false, "", "Blue, not <think>red</think>."),
            ("<thin air", false, "", "<thin air"),
            ("a </thin b </think c </think> d", true, "a </thin b </think c", "d"),
            ("cut off </thi", true, "cut off </thi", ""),
            ("", true, "", ""),
            ("\n ", false, "", "\n "),
        ] {
            for size in 1..12 {
                let expected = (reasoning.to_owned(), text.to_owned());
                assert_eq!(parse(format(), answer, is_open, size), expected, "{answer:?} by {size}");
            }
        }
    }

    #[test]
    fn harmony_has_its_reasoning_in_a_channel() {
        for (answer, reasoning, text) in [
            (
                "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant<|channel|>final<|message|>Blue.",
                "Why?",
                "Blue.",
            ),
            ("<|channel|>final<|message|>Blue.", "", "Blue."),
            (
                "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant<|channel|>analysis<|message|> How?<|end|>\
                 <|start|>assistant<|channel|>final<|message|>Blue <|channel|>.",
                "Why? How?",
                "Blue <|channel|>.",
            ),
            ("<|channel|>analysis<|message|>Why?<|end|><|start|>assis", "Why?", ""),
            ("Blue.", "", "Blue."),
        ] {
            for size in 1..50 {
                let format = ReasoningFormat::in_plain_text("<|channel|>analysis<|message|>");
                let expected = (reasoning.to_owned(), text.to_owned());
                assert_eq!(parse(format, answer, false, size), expected, "{answer:?} by {size}");
            }
        }
    }

    #[test]
    fn a_prompt_that_ends_with_the_marker_opens_it() {
        assert!(format().is_open_after("<|im_start|>assistant\n<think>\n"));
        assert!(!format().is_open_after("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    }
}
