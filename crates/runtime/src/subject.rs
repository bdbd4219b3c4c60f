//! Which tokens of a prompt say what it is about.

use std::ops::Range;
use std::time::SystemTime;

use crate::engine::GenerateError;
use crate::{Engine, Message, Prompt, Tools};

impl Engine {
    /// The tokens of the last message that the user wrote: what comes before, such as instructions that all requests share,
    /// would drown it. All of them where there is no such message. The prompt has so many tokens; it may have lost some at its
    /// beginning.
    pub(crate) fn subject(&self, prompt: &Prompt, tools: &Tools, tokens: usize) -> Result<Range<usize>, GenerateError> {
        let Prompt::Messages(messages) = prompt else { return Ok(0..tokens) };
        let Some(last) = messages.iter().rposition(|message| message.role == "user") else { return Ok(0..tokens) };
        let mut without = messages.clone();
        without[last] = Message { content: String::new(), ..without[last].clone() };
        // Templates may do anything with a message but write it somewhere: it is where the text is another without it. Some
        // refuse empty ones.
        let now = SystemTime::now();
        let whole = self.render(messages, tools, now)?;
        let Ok(without) = self.render(&without, tools, now) else { return Ok(0..tokens) };
        let part = difference(whole.text().as_bytes(), without.text().as_bytes());
        let (all, subject) = self.tokenizer().encode_prompt_with_part(&whole, part);
        let lost = all.len().saturating_sub(tokens);
        let is_there = !subject.is_empty() && subject.start >= lost;
        Ok(if is_there { subject.start - lost..subject.end - lost } else { 0..tokens })
    }
}

/// What of `text` is not at either end of `other`.
fn difference(text: &[u8], other: &[u8]) -> Range<usize> {
    let start = text.iter().zip(other).take_while(|(a, b)| a == b).count();
    let same_end = text[start..].iter().rev().zip(other[start..].iter().rev()).take_while(|(a, b)| a == b).count();
    start..text.len() - same_end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_what_was_put_in() {
        for (text, other, expected) in [
            ("<user>hello<end>", "<user><end>", 6..11),
            ("<user><end>", "<user><end>", 11..11),
            ("<user>", "<user><end>", 6..6),
            ("aaa", "a", 1..3),
            ("", "", 0..0),
        ] {
            assert_eq!(difference(text.as_bytes(), other.as_bytes()), expected, "{text}");
        }
    }
}
