//! The pieces of work that every engine is given.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One piece of work. All of it is greedy and never stops at an end token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum Work {
    /// Time from `tokens` prompt tokens to the choice of the next token, with `depth` tokens in the context already.
    Prefill { tokens: usize, depth: usize },
    /// `tokens` tokens one after the other. The context holds `depth` tokens (at least one) and the first choice before.
    Decode { tokens: usize, depth: usize },
    /// Time to the first token of the second turn of a chat, whose first had `depth` prompt tokens: the text up to shortly before
    /// the answer is the same, for templates write the beginning of an answer otherwise once it is there.
    NextTurn { depth: usize },
    /// `count` sequences at once, with different prompts. What is timed begins when all prompts are done.
    Sequences { count: usize, prompt: usize, tokens: usize },
}

/// Prompt tokens and generated tokens of each sequence when several run at once.
pub const SEQUENCE_PROMPT: usize = 128;
pub const SEQUENCE_TOKENS: usize = 64;
/// Of a chat's turns: tokens of the first answer, tokens before it that the second prompt has otherwise, and tokens from there on.
pub const TURN_ANSWER: usize = 32;
pub const TURN_CHANGED: usize = 8;
pub const TURN_NEW: usize = 100;
/// Generated tokens of a decode measurement.
pub const DECODE_TOKENS: usize = 64;

impl Work {
    /// The longest sequence that the work makes, with one token to spare for the last choice.
    pub fn context(self) -> usize {
        match self {
            Self::Prefill { tokens, depth } => depth + tokens + 1,
            Self::Decode { tokens, depth } => depth.max(1) + tokens + 1,
            Self::NextTurn { depth } => depth + TURN_ANSWER.max(TURN_NEW) + 1,
            Self::Sequences { prompt, tokens, .. } => prompt + tokens + 1,
        }
    }

    pub fn sequences(self) -> usize {
        match self {
            Self::Sequences { count, .. } => count,
            _ => 1,
        }
    }
}

/// As `prefill:512@2048`, `decode:64@2048` or `sequences:8`; the depth may be left out.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefill { tokens, depth: 0 } => write!(f, "prefill:{tokens}"),
            Self::Prefill { tokens, depth } => write!(f, "prefill:{tokens}@{depth}"),
            Self::Decode { tokens: DECODE_TOKENS, depth } => write!(f, "decode@{depth}"),
            Self::Decode { tokens, depth } => write!(f, "decode:{tokens}@{depth}"),
            Self::NextTurn { depth } => write!(f, "turn@{depth}"),
            Self::Sequences { count, .. } => write!(f, "sequences:{count}"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (head, depth) = text.split_once('@').unwrap_or((text, "0"));
        let (name, count) = head.split_once(':').map_or((head, None), |(name, count)| (name, Some(count)));
        let number = |text: &str| {
            text.parse::<usize>().map_err(|_| format!("'{text}' in '{head}@{depth}' is not a whole number"))
        };
        let count = count.map(number).transpose()?;
        let depth = number(depth)?;
        match (name, count) {
            ("prefill", Some(tokens @ 1..)) => Ok(Self::Prefill { tokens, depth }),
            ("decode", None) => Ok(Self::Decode { tokens: DECODE_TOKENS, depth }),
            ("decode", Some(tokens @ 1..)) => Ok(Self::Decode { tokens, depth }),
            ("turn", None) if depth > TURN_CHANGED => Ok(Self::NextTurn { depth }),
            ("sequences", Some(count @ 1..)) if depth == 0 => {
                Ok(Self::Sequences { count, prompt: SEQUENCE_PROMPT, tokens: SEQUENCE_TOKENS })
            }
            _ => Err(format!(
                "'{text}' is no work; write prefill:TOKENS[@DEPTH], decode[:TOKENS][@DEPTH], turn@DEPTH or sequences:N"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in
            ["prefill:512", "prefill:128@2048", "decode@0", "decode@2048", "decode:16@4", "turn@4000", "sequences:8"]
        {
            assert_eq!(name.parse::<Work>().unwrap().to_string(), name);
        }
        for wrong in
            ["prefill", "prefill:0", "decode:0", "sequences:8@4", "load:1", "turn", "prefill:x", "prefill:1@-1"]
        {
            assert!(wrong.parse::<Work>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn works_are_lines_of_json() {
        let work = Work::Prefill { tokens: 512, depth: 0 };
        let line = serde_json::to_string(&work).unwrap();
        assert_eq!(line, r#"{"work":"prefill","tokens":512,"depth":0}"#);
        assert_eq!(serde_json::from_str::<Work>(&line).unwrap(), work);
    }
}
