//! Lines with a rejected answer: two items with the same prompt, in the formats that preference data comes in.

use ruvllm_training::Item;
use serde_json::Value;

use super::{ItemEncoder, ItemError, conversation, fault, is_answer, text};
use crate::Message;

impl ItemEncoder {
    /// Reads `chosen` and `rejected`: texts behind a prompt, or lists of messages, of which the last is the answer. What both
    /// begin with is the prompt, or belongs to it.
    pub(super) fn preference(
        &mut self,
        (messages, prompt): (Option<&Value>, Option<&Value>),
        chosen: &Value,
        rejected: &Value,
        document: usize,
    ) -> Result<Vec<Item>, ItemError> {
        match (chosen.is_array(), messages) {
            (true, messages) => {
                // Some data sets have the chosen conversation once more.
                messages.into_iter().for_each(|_| self.ignore("messages"));
                self.preferred_message(prompt, chosen, rejected, document)
            }
            (false, None) => {
                self.preferred_text(prompt, text("chosen", chosen)?, text("rejected", rejected)?, document)
            }
            (false, Some(_)) => {
                let problem = "cannot be the prompt of texts: give \"chosen\" and \"rejected\" as lists of messages";
                Err(fault("messages", problem))
            }
        }
    }

    fn preferred_text(
        &self,
        prompt: Option<&Value>,
        chosen: &str,
        rejected: &str,
        document: usize,
    ) -> Result<Vec<Item>, ItemError> {
        let (prompt, from) = match prompt {
            Some(prompt) => (text("prompt", prompt)?, 0),
            None => beginning(chosen, rejected)?,
        };
        let rejected = Value::from(&rejected[from..]);
        self.completions(prompt, ("chosen", &chosen[from..]), Some(&rejected), document)
    }

    fn preferred_message(
        &mut self,
        prompt: Option<&Value>,
        chosen: &Value,
        rejected: &Value,
        document: usize,
    ) -> Result<Vec<Item>, ItemError> {
        let before = match prompt {
            // The question once more, as a text.
            Some(Value::String(_)) => {
                self.ignore("prompt");
                Vec::new()
            }
            Some(prompt) => conversation("prompt", prompt)?,
            None => Vec::new(),
        };
        let [chosen, rejected] = [
            [before.clone(), conversation("chosen", chosen)?].concat(),
            [before, conversation("rejected", rejected)?].concat(),
        ];
        for (field, messages) in [("chosen", &chosen), ("rejected", &rejected)] {
            if messages.len() < 2 || !messages.last().is_some_and(is_answer) {
                return Err(fault(field, "must end with an answer of the assistant, after another message"));
            }
        }
        if chosen[..chosen.len() - 1] != rejected[..rejected.len() - 1] {
            let problem = "must begin as chosen does: they may differ in the last message only, the answer";
            return Err(fault("rejected", problem));
        }
        let item = self.answer(&chosen, "chosen", document)?;
        let rejected = self.answer(&rejected, "rejected", document)?;
        Ok(vec![self.preferred(item, Some(rejected))?])
    }

    /// Makes an item of the text that is rejected for the last message of a conversation.
    pub(super) fn rejected_answer(
        &mut self,
        messages: &[Message],
        rejected: &Value,
        document: usize,
    ) -> Result<Item, ItemError> {
        let rejected = Message::assistant(text("rejected", rejected)?);
        match messages.split_last() {
            Some((last, before)) if is_answer(last) => {
                self.answer(&[before, &[rejected]].concat(), "rejected", document)
            }
            _ => Err(fault("messages", "must end with the answer that is preferred to the one in \"rejected\"")),
        }
    }

    /// Joins an item and what is rejected for it. Both are computed in one step.
    pub(super) fn preferred(&self, item: Item, rejected: Option<Item>) -> Result<Item, ItemError> {
        let Some(rejected) = rejected else { return Ok(item) };
        if rejected.tokens == item.tokens {
            return Err(fault("rejected", "is the answer that is preferred to it: leave the line out"));
        }
        let (tokens, max) = (item.tokens.len() + rejected.tokens.len(), self.tokens_max);
        match tokens > max {
            true => Err(ItemError::PairTooLong { tokens, max }),
            false => Ok(Item { rejected: Some(Box::new(rejected)), ..item }),
        }
    }
}

/// Returns what two texts begin with, and where it ends: before white space, which is part of the token of the word behind it.
fn beginning<'t>(one: &'t str, other: &str) -> Result<(&'t str, usize), ItemError> {
    let same = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    let end = same.map_or(one.len().min(other.len()), |((at, _), _)| at);
    let words = one[..end].rfind(char::is_whitespace).map_or("", |at| one[..at].trim_end());
    match words {
        _ if one == other => Err(fault("rejected", "is the same as chosen: leave the line out")),
        "" => Err(fault("chosen and rejected", "do not begin alike: give what they follow as \"prompt\"")),
        words => Ok((words, words.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::beginning;

    #[test]
    fn what_two_texts_begin_with_ends_before_the_white_space_of_a_word() {
        let begins = |one, other| beginning(one, other).map(|(words, _)| words).map_err(|error| error.to_string());
        assert_eq!(begins("Q: Why? A: This one.", "Q: Why? A: That one."), Ok("Q: Why? A:"));
        assert_eq!(
            begins("\n\nHuman: Hi\n\nAssistant:\n\nYes", "\n\nHuman: Hi\n\nAssistant:\n\nNo"),
            Ok("\n\nHuman: Hi\n\nAssistant:")
        );
        assert_eq!(begins("The sky is", "The sky is blue"), Ok("The sky"), "something of both is left");
        assert_eq!(begins("Où est-il né ?", "Où est-il nu ?"), Ok("Où est-il"));
        for (one, other, problem) in [
            ("same thing", "same thing", "leave the line out"),
            ("a b", "c d", "\"prompt\""),
            (" a", " b", "\"prompt\""),
        ] {
            assert!(begins(one, other).is_err_and(|said| said.contains(problem)), "{one:?}");
        }
    }
}
