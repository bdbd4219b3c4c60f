//! Prompts become tokens.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use ruvllm_text::{Conversation, NextTurn, RenderedPrompt, SpecialTokens, Tokenizer};

use crate::engine::GenerateError;
use crate::{Engine, Message, Prompt, Tools};

/// A prompt as the model will see it.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub tokens: Vec<u32>,
    /// Which of them say what it is about: those of the last message that the user wrote, since what comes before, such as
    /// instructions that all requests share, would drown it. All of them where there is no such message, or nobody wants to know.
    pub subject: Range<usize>,
}

impl From<Vec<u32>> for Encoded {
    fn from(tokens: Vec<u32>) -> Self {
        Self { subject: 0..tokens.len(), tokens }
    }
}

impl Engine {
    /// The token ids of a prompt, as the model will see them.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, GenerateError> {
        self.encode_with_tools(prompt, &Tools::default())
    }

    /// The same for a conversation in which the model is told of tools.
    pub fn encode_with_tools(&self, prompt: &Prompt, tools: &Tools) -> Result<Vec<u32>, GenerateError> {
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => {
                self.check_encodable(text)?;
                Ok(encode_text(self.tokenizer(), text))
            }
            Prompt::Messages(messages) => Ok(self.encode_messages(messages, tools, false, None)?.tokens),
        }
    }

    /// With `tokens_max`, what cannot be that short is refused before it is encoded.
    pub(crate) fn encode_messages(
        &self,
        messages: &[Message],
        tools: &Tools,
        wants_subject: bool,
        tokens_max: Option<usize>,
    ) -> Result<Encoded, GenerateError> {
        let now = SystemTime::now();
        let whole = self.render(messages, tools, now)?;
        self.check_bytes(whole.text().len(), tokens_max)?;
        self.check_encodable(whole.text())?;
        let last = messages.iter().rposition(|message| message.role == "user").filter(|_| wants_subject);
        let Some(last) = last else { return Ok(self.tokenizer().encode_prompt(&whole).into()) };
        let mut without = messages.to_vec();
        without[last].content.clear();
        // Templates may do anything with a message but write it somewhere: it is where the text is another without it. Some
        // refuse empty ones.
        let part = match self.render(&without, tools, now) {
            Ok(without) => difference(whole.text().as_bytes(), without.text().as_bytes()),
            Err(_) => 0..0,
        };
        let (tokens, subject) = self.tokenizer().encode_prompt_with_part(&whole, part);
        Ok(if subject.is_empty() { tokens.into() } else { Encoded { tokens, subject } })
    }

    /// A conversation in the model's own chat format, as it is at some time: some formats tell the date.
    fn render(&self, messages: &[Message], tools: &Tools, now: SystemTime) -> Result<RenderedPrompt, GenerateError> {
        let template = self.template().ok_or(GenerateError::NoTemplate)?;
        let messages: Vec<_> = messages.iter().map(Message::to_json).collect();
        let (messages, tools) = self.tool_format().conversation(&messages, tools.offered());
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let conversation = Conversation {
            messages: &messages,
            tools: tools.as_ref(),
            next_turn: NextTurn::Assistant,
            variables: &serde_json::Map::new(),
            now_unix_s: i64::try_from(now).unwrap_or(i64::MAX),
        };
        Ok(template.render(&conversation)?)
    }

    /// Refuses texts of which the length alone tells that they have more than `tokens_max` tokens.
    pub(crate) fn check_bytes(&self, bytes: usize, tokens_max: Option<usize>) -> Result<(), GenerateError> {
        match tokens_max {
            Some(context) if self.tokenizer().tokens_min(bytes) > context => {
                Err(GenerateError::PromptTooLarge { bytes, context })
            }
            _ => Ok(()),
        }
    }

    /// Encoding leaves out what the vocabulary has no token for; nothing is to vanish in silence.
    fn check_encodable(&self, text: &str) -> Result<(), GenerateError> {
        let missing = self.tokenizer().first_unencodable(text);
        missing.map_or(Ok(()), |character| Err(GenerateError::Unencodable(character)))
    }
}

/// Plain text, with the token that begins every text where the model wants one.
pub(crate) fn encode_text(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    bos.into_iter().chain(tokenizer.encode(text, SpecialTokens::AsText)).collect()
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
