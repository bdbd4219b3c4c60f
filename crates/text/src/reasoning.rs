//! Reasoning: what a model writes for itself before its answer, between two markers.

use crate::tokenizer::Tokenizer;

/// Markers of published models, by their templates.
const MARKERS: [(&str, &str); 5] = [
    // Qwen3, DeepSeek-R1, SmolLM3, GLM and many others.
    ("<think>", "</think>"),
    // Magistral.
    ("[THINK]", "[/THINK]"),
    // Seed-OSS.
    ("<seed:think>", "</seed:think>"),
    // Command A Reasoning.
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    // Apertus and some fine-tunes.
    ("<reasoning>", "</reasoning>"),
];

/// How a model marks its reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningFormat {
    opens: &'static str,
    closes: &'static str,
    /// Markers that are control tokens, which have no text of their own in an answer.
    control_tokens: Vec<(u32, &'static str)>,
}

impl ReasoningFormat {
    /// Returns the format that a chat template was written for; `None` if its model does not reason.
    pub fn of_template(source: &str, tokenizer: &Tokenizer) -> Option<Self> {
        let (opens, closes) = MARKERS.into_iter().find(|(_, closes)| source.contains(closes))?;
        let control = |marker| tokenizer.token_id(marker).filter(|id| tokenizer.is_control(*id)).map(|id| (id, marker));
        Some(Self { opens, closes, control_tokens: [opens, closes].into_iter().filter_map(control).collect() })
    }

    /// Returns whether a chat template was written for a model that reasons.
    pub fn is_in_template(source: &str) -> bool {
        MARKERS.iter().any(|(_, closes)| source.contains(closes))
    }

    /// Returns whether a prompt ends with the opening marker, so that the answer begins inside the reasoning.
    pub fn is_open_after(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.opens)
    }

    pub fn opens(&self) -> &'static str {
        self.opens
    }

    pub fn closes(&self) -> &'static str {
        self.closes
    }

    /// Returns the text of a marker that is a control token.
    pub fn control_text(&self, token: u32) -> Option<&'static str> {
        self.control_tokens.iter().find(|(id, _)| *id == token).map(|(_, text)| *text)
    }
}

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
            ReasoningPhase::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(self.format.opens) {
                    self.held = rest.to_owned();
                    self.phase = ReasoningPhase::Reasoning;
                    return true;
                }
                if self.format.opens.starts_with(text) {
                    return false;
                }
                self.phase = ReasoningPhase::Answer;
                true
            }
            ReasoningPhase::Reasoning => self.reason(pieces),
            ReasoningPhase::Closed => {
                self.held.drain(..self.held.len() - self.held.trim_start().len());
                if self.held.is_empty() {
                    return false;
                }
                self.phase = ReasoningPhase::Answer;
                true
            }
            ReasoningPhase::Answer => {
                pieces.push(ReasoningPiece::Text(std::mem::take(&mut self.held)));
                false
            }
        }
    }

    fn reason(&mut self, pieces: &mut Vec<ReasoningPiece>) -> bool {
        let closes = self.format.closes;
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
        ReasoningFormat { opens: "<think>", closes: "</think>", control_tokens: Vec::new() }
    }

    /// Reasoning and text of an answer that comes in pieces of `size` characters.
    fn parse(answer: &str, is_open: bool, size: usize) -> (String, String) {
        let mut parser = ReasoningParser::new(format(), is_open);
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
                assert_eq!(parse(answer, is_open, size), expected, "{answer:?} by {size}");
            }
        }
    }

    #[test]
    fn a_prompt_that_ends_with_the_marker_opens_it() {
        assert!(format().is_open_after("<|im_start|>assistant\n<think>\n"));
        assert!(!format().is_open_after("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    }
}
