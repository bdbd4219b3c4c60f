//! Texts to learn from, as a model reads them: a line of JSON becomes items of a training.
//!
//! An answer's tokens are those that the model would have to generate after the prompt that a request has: the conversation before
//! it in the model's chat format. So each answer of a conversation is an item of its own.

mod pairs;

use std::collections::BTreeSet;
use std::path::Path;

use ruvllm_engine::TokenId;
use ruvllm_text::{SpecialTokens, Tokenizer};
use ruvllm_training::Item;
use serde_json::{Map, Value};

use crate::builder::open_prompt_encoder;
use crate::encode::{PromptEncoder, encode_text};
use crate::{BuildError, GenerateError, Message, Prompt, Tools};

/// Fields that are learned from.
const KNOWN: [&str; 6] = ["messages", "prompt", "completion", "text", "chosen", "rejected"];
/// Other fields that are remembered, and how much of each name.
const IGNORED_MAX: usize = 16;
const NAME_CHARS_MAX: usize = 64;

/// Why a line cannot be learned from.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    #[error("it is no JSON object: {0}")]
    Json(String),
    #[error(
        "it must have \"messages\", or \"prompt\" and \"completion\", or \"chosen\" and \"rejected\", or \"text\", and only \
         one of these; it has {0}"
    )]
    NoKind(String),
    #[error("{field} {problem}")]
    Field { field: String, problem: String },
    #[error(
        "{field} has {tokens} tokens; at most {max} are taken at once: make it shorter, or allow more tokens for a step"
    )]
    TooLong { field: String, tokens: usize, max: usize },
    #[error(
        "its two answers have {tokens} tokens with their prompts; at most {max} are taken at once: make them shorter, or \
         allow more tokens for a step"
    )]
    PairTooLong { tokens: usize, max: usize },
    #[error("text has no prompt, and an activated adapter begins with an answer: give \"messages\" or \"prompt\"")]
    NoPrompt,
    #[error("{field}: {source}")]
    Encode { field: String, source: Box<GenerateError> },
}

/// Turns lines into items for one model.
#[derive(Debug)]
pub struct ItemEncoder {
    encoder: PromptEncoder,
    tokens_max: usize,
    is_activated: bool,
    /// What begins an answer in the model's chat format, as far as conversations have shown it.
    answer_start: Option<Vec<TokenId>>,
    ignored: BTreeSet<String>,
}

impl ItemEncoder {
    /// Reads how a model reads text, for items of up to `tokens_max` tokens. The adapter applies to answers only if it
    /// `is_activated`.
    pub fn open(model: &Path, tokens_max: usize, is_activated: bool) -> Result<Self, BuildError> {
        let encoder = open_prompt_encoder(model, tokens_max)?;
        Ok(Self { encoder, tokens_max, is_activated, answer_start: None, ignored: BTreeSet::new() })
    }

    /// Returns the tokens that switch an activated adapter on: those that begin an answer. None, if it begins with the answer.
    pub fn invocation(&self) -> &[TokenId] {
        self.answer_start.as_deref().unwrap_or_default()
    }

    /// Returns the fields that lines have had beside those that are learned from, or the first of them.
    pub fn ignored_fields(&self) -> Vec<&str> {
        self.ignored.iter().map(String::as_str).collect()
    }

    /// Reads a line. What is learned of it is of one document, the number of which is given.
    pub fn encode(&mut self, line: &str, document: usize) -> Result<Vec<Item>, ItemError> {
        let fields: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| ItemError::Json(error.to_string()))?;
        fields.keys().filter(|name| !KNOWN.contains(&name.as_str())).for_each(|name| self.ignore(name));
        let [messages, prompt, completion, whole, chosen, rejected] = KNOWN.map(|name| fields.get(name));
        match (messages, prompt, completion, whole, chosen) {
            (Some(messages), None, None, None, None) => self.conversation(messages, rejected, document),
            (None, Some(prompt), completion, None, None) if completion.is_some() || rejected.is_none() => {
                let completion = text("completion", completion.unwrap_or(&Value::Null))?;
                self.completions(text("prompt", prompt)?, ("completion", completion), rejected, document)
            }
            (None, None, None, Some(_), None) if self.is_activated => Err(ItemError::NoPrompt),
            (None, None, None, Some(whole), None) if rejected.is_none() => {
                self.windows(text("text", whole)?, self.tokens_max, document)
            }
            (messages, prompt, None, None, Some(chosen)) if rejected.is_some() => {
                self.preference((messages, prompt), chosen, rejected.unwrap_or(&Value::Null), document)
            }
            _ => Err(ItemError::NoKind(names(fields.keys()))),
        }
    }

    /// Remembers a field that nothing is learned from.
    fn ignore(&mut self, name: &str) {
        if self.ignored.len() < IGNORED_MAX {
            self.ignored.insert(shortened(name));
        }
    }

    /// Makes windows of up to `tokens` tokens of a text in which every token is a target. If the adapter applies to
    /// answers only, each stands where an answer does: behind what begins one in the chat format, as conversations
    /// have shown it.
    pub fn answers(&self, text: &str, tokens: usize, document: usize) -> Result<Vec<Item>, ItemError> {
        let tokens_max = tokens.min(self.tokens_max);
        if !self.is_activated {
            return self.windows(text, tokens_max, document);
        }
        let start = self.invocation();
        if start.is_empty() {
            return Err(ItemError::NoPrompt);
        }
        let tokens = self.tokenizer().encode(text, SpecialTokens::AsText);
        let windows = tokens.chunks(tokens_max.saturating_sub(start.len()).max(1));
        let item = |window: &[TokenId]| {
            let tokens = [start, window].concat();
            let targets = start.len()..tokens.len();
            Item::new(tokens, targets, document)
        };
        Ok(windows.map(item).collect())
    }

    fn tokenizer(&self) -> &Tokenizer {
        self.encoder.tokenizer()
    }

    /// Encodes text that is generated: it begins nothing.
    fn continuation(&self, field: &str, text: &str) -> Result<Vec<TokenId>, ItemError> {
        self.check(field, text)?;
        Ok(self.tokenizer().encode(text, SpecialTokens::AsText))
    }

    /// Refuses a text that is too long whatever its tokens are, or that has characters without tokens.
    fn check(&self, field: &str, text: &str) -> Result<(), ItemError> {
        let (tokens, max) = (self.tokenizer().tokens_min(text.len()), self.tokens_max);
        if tokens > max {
            return Err(ItemError::TooLong { field: field.to_owned(), tokens, max });
        }
        match self.tokenizer().first_unencodable(text) {
            Some(character) => {
                let problem = format!("has {character:?}, which the model has no token for");
                Err(ItemError::Field { field: field.to_owned(), problem })
            }
            None => Ok(()),
        }
    }

    /// Makes an item of a completion, whose name is `field`, and of what is rejected for it.
    fn completions(
        &self,
        prompt: &str,
        (field, completion): (&str, &str),
        rejected: Option<&Value>,
        document: usize,
    ) -> Result<Vec<Item>, ItemError> {
        let item = self.completion(prompt, (field, completion), document)?;
        let rejected = rejected.map(|rejected| text("rejected", rejected)).transpose()?;
        let rejected =
            rejected.map(|rejected| self.completion(prompt, ("rejected", rejected), document)).transpose()?;
        Ok(vec![self.preferred(item, rejected)?])
    }

    fn completion(&self, prompt: &str, (field, completion): (&str, &str), document: usize) -> Result<Item, ItemError> {
        self.check("prompt", prompt)?;
        let prompt = encode_text(self.tokenizer(), prompt);
        if prompt.is_empty() {
            let problem = "has no tokens: give what the completion follows, or use \"text\"".to_owned();
            return Err(ItemError::Field { field: "prompt".to_owned(), problem });
        }
        let mut answer = self.continuation(field, completion)?;
        answer.extend(self.tokenizer().eos());
        let active_from = if self.is_activated { prompt.len() - 1 } else { 0 };
        self.item(field, prompt, &answer, active_from, document)
    }

    /// Makes windows of a text, in which every token is a target.
    fn windows(&self, text: &str, tokens_max: usize, document: usize) -> Result<Vec<Item>, ItemError> {
        if let Some(character) = self.tokenizer().first_unencodable(text) {
            let problem = format!("has {character:?}, which the model has no token for");
            return Err(ItemError::Field { field: "text".to_owned(), problem });
        }
        let tokens = encode_text(self.tokenizer(), text);
        let windows = tokens.chunks(tokens_max).filter(|window| window.len() > 1);
        let items: Vec<Item> = windows.map(|window| Item::new(window.to_vec(), 1..window.len(), document)).collect();
        match items.is_empty() {
            true => {
                let problem = "has fewer than two tokens, so there is nothing to predict".to_owned();
                Err(ItemError::Field { field: "text".to_owned(), problem })
            }
            false => Ok(items),
        }
    }

    /// Makes an item of each answer, and of what is rejected for the last one.
    fn conversation(
        &mut self,
        messages: &Value,
        rejected: Option<&Value>,
        document: usize,
    ) -> Result<Vec<Item>, ItemError> {
        let read = conversation("messages", messages)?;
        let mut items = Vec::new();
        for (index, _) in read.iter().enumerate().filter(|(index, message)| *index > 0 && is_answer(message)) {
            items.push(self.answer(&read[..=index], &format!("messages[{index}]"), document)?);
        }
        let Some(last) = items.pop() else {
            let problem = "has no answer of the assistant after another message, so there is nothing to predict";
            return Err(fault("messages", problem));
        };
        let rejected = rejected.map(|rejected| self.rejected_answer(&read, rejected, document)).transpose()?;
        items.push(self.preferred(last, rejected)?);
        Ok(items)
    }

    /// Makes an item of the last message of a conversation, which has others before it.
    fn answer(&mut self, conversation: &[Message], field: &str, document: usize) -> Result<Item, ItemError> {
        let (before, content) =
            (&conversation[..conversation.len() - 1], &conversation[conversation.len() - 1].content);
        let bytes: usize = before.iter().map(|message| message.content.len()).sum();
        let (tokens, max) = (self.tokenizer().tokens_min(bytes), self.tokens_max);
        if tokens > max {
            return Err(ItemError::TooLong { field: field.to_owned(), tokens, max });
        }
        let prompt = self.render(before, field)?;
        let with_answer = self.render(conversation, field)?;
        let mut answer = self.continuation(&format!("{field}.content"), content)?;
        let is_end = |token: &&TokenId| self.tokenizer().is_end_of_generation(**token);
        let behind = with_answer.get(prompt.len()..).unwrap_or_default();
        answer.extend(behind.iter().find(is_end).copied().or_else(|| self.tokenizer().eos()));
        let start = common_end(&prompt, &with_answer);
        // What two prompts have in common may reach into the message before.
        let start = &prompt[prompt.len() - start..];
        let first =
            start.iter().rposition(|token| self.tokenizer().is_end_of_generation(*token)).map_or(0, |end| end + 1);
        let start = start[first..].to_vec();
        let start = self.answer_start.get_or_insert(start).clone();
        let active_from = match self.is_activated {
            true if !start.is_empty() && prompt.ends_with(&start) => prompt.len() - start.len(),
            true => prompt.len().saturating_sub(1),
            false => 0,
        };
        self.item(field, prompt, &answer, active_from, document)
    }

    fn render(&self, messages: &[Message], field: &str) -> Result<Vec<TokenId>, ItemError> {
        let prompt = Prompt::Messages(messages.to_vec());
        match self.encoder.encode(&prompt, &Tools::default()) {
            Ok(encoded) => Ok(encoded.tokens),
            Err(source) => Err(ItemError::Encode { field: field.to_owned(), source: Box::new(source) }),
        }
    }

    fn item(
        &self,
        field: &str,
        prompt: Vec<TokenId>,
        answer: &[TokenId],
        active_from: usize,
        document: usize,
    ) -> Result<Item, ItemError> {
        let first = prompt.len();
        let mut tokens = prompt;
        tokens.extend(answer);
        if tokens.len() > self.tokens_max {
            let (tokens, max) = (tokens.len(), self.tokens_max);
            return Err(ItemError::TooLong { field: field.to_owned(), tokens, max });
        }
        let targets = first..tokens.len();
        Ok(Item { active_from, ..Item::new(tokens, targets, document) })
    }
}

/// Names the fields of a line, or the first of them.
fn names<'n>(fields: impl Iterator<Item = &'n String>) -> String {
    let names: Vec<String> = fields.take(IGNORED_MAX).map(|name| shortened(name)).collect();
    if names.is_empty() { "no fields".to_owned() } else { names.join(", ") }
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}

fn text<'v>(field: &str, value: &'v Value) -> Result<&'v str, ItemError> {
    match value.as_str() {
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(fault(field, "must be a text that is not empty")),
    }
}

/// Reads a list of messages.
fn conversation(field: &str, messages: &Value) -> Result<Vec<Message>, ItemError> {
    let list = messages.as_array().ok_or_else(|| fault(field, "is not a list"))?;
    let message = |(index, message): (usize, &Value)| {
        Message::from_json(message)
            .ok_or_else(|| fault(&format!("{field}[{index}]"), "needs the texts role and content"))
    };
    list.iter().enumerate().map(message).collect()
}

fn fault(field: &str, problem: &str) -> ItemError {
    ItemError::Field { field: field.to_owned(), problem: problem.to_owned() }
}

/// Whether a message is one that the model is to write. What it calls is not learned here.
fn is_answer(message: &Message) -> bool {
    message.role == "assistant" && !message.content.is_empty()
}

/// Returns how many tokens two lists have in common at their ends.
fn common_end(one: &[TokenId], other: &[TokenId]) -> usize {
    one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count()
}
