//! Turns a request's prompt into tokens: the chat template is rendered, and what does not fit is truncated or refused.
//!
//! Knows text and tokens, and neither the engine nor the memory.

mod truncate;

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ruvllm_engine::TokenId;
use ruvllm_text::{
    ChatTemplate, Conversation, NextTurn, ReasoningFormat, RenderedPrompt, RunCache, SpecialTokens, Tokenizer,
    ToolFormat,
};
use serde_json::{Map, Value};

pub use truncate::Truncation;

use crate::{CancellationToken, GenerateError, Message, Prompt, Request, Tools};

/// A prompt as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedPrompt {
    pub tokens: Vec<TokenId>,
    /// Tokens of the last user message, where they were asked for: instructions that all requests share would drown it in an
    /// embedding. All tokens where there is no such message.
    pub subject: Range<usize>,
    /// Tokens that were left out because they did not fit.
    pub truncated_tokens: usize,
    /// Whether it ends inside the reasoning of a model that reasons; `None` if it is no conversation.
    pub opens_reasoning: Option<bool>,
}

impl From<Vec<TokenId>> for EncodedPrompt {
    fn from(tokens: Vec<TokenId>) -> Self {
        Self { subject: 0..tokens.len(), tokens, truncated_tokens: 0, opens_reasoning: None }
    }
}

/// Encodes prompts for one model.
#[derive(Debug)]
pub(crate) struct PromptEncoder {
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    tool_format: ToolFormat,
    /// How the model marks its reasoning, if it reasons.
    reasoning_format: Option<ReasoningFormat>,
    /// Maximum length of a sequence in tokens.
    context: usize,
}

/// A conversation on its way to tokens, and what is wanted of them.
struct Rendering<'r> {
    messages: &'r [Message],
    tools: &'r Tools,
    variables: &'r Map<String, Value>,
    wants_subject: bool,
    /// Refuses a text that cannot have as few tokens as this, before it is encoded.
    tokens_max: Option<usize>,
}

impl PromptEncoder {
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        template: Option<ChatTemplate>,
        tool_format: ToolFormat,
        reasoning_format: Option<ReasoningFormat>,
        context: usize,
    ) -> Self {
        Self { tokenizer, template, tool_format, reasoning_format, context }
    }

    pub(crate) fn reasoning_format(&self) -> Option<&ReasoningFormat> {
        self.reasoning_format.as_ref()
    }

    /// Returns how the answer to a prompt is divided, and whether it begins inside the reasoning; `None` if nothing in it can
    /// be reasoning.
    pub(crate) fn reasoning_after(&self, prompt: &EncodedPrompt) -> Option<(&ReasoningFormat, bool)> {
        Some((self.reasoning_format.as_ref()?, prompt.opens_reasoning?))
    }

    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    pub(crate) fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Encodes a prompt of any length.
    pub(crate) fn encode(&self, prompt: &Prompt, tools: &Tools) -> Result<EncodedPrompt, GenerateError> {
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone().into()),
            Prompt::Text(text) => self.encode_text(text, None),
            Prompt::Messages(messages) => {
                let variables = &Map::new();
                let rendering = Rendering { messages, tools, variables, wants_subject: false, tokens_max: None };
                self.encode_messages(&rendering, None)
            }
        }
    }

    /// Encodes the prompt of a request, truncated as the request allows. Every text in it is encoded once. A prompt that is
    /// still too long is returned as it is: the engine refuses it.
    pub(crate) fn encode_request(
        &self,
        request: &Request,
        cancellation: &CancellationToken,
    ) -> Result<EncodedPrompt, GenerateError> {
        let Request { prompt, tools, truncation, template_variables: variables, .. } = request;
        let tokens_max = (*truncation == Truncation::Refuse).then(|| request.context_in(self.context));
        let wants_subject = request.embeddings || *truncation == Truncation::CutEnd;
        // Only this truncation encodes a conversation again, without some of its messages.
        let mut runs = (*truncation == Truncation::DropOldest).then(RunCache::default);
        let whole = match prompt {
            Prompt::Messages(messages) => {
                let rendering = Rendering { messages, tools, variables, wants_subject, tokens_max };
                self.encode_messages(&rendering, runs.as_mut())?
            }
            Prompt::Text(text) => self.encode_text(text, tokens_max)?,
            Prompt::Tokens(tokens) => tokens.clone().into(),
        };
        check(cancellation)?;
        self.truncate(request, whole, runs, cancellation)
    }

    fn encode_text(&self, text: &str, tokens_max: Option<usize>) -> Result<EncodedPrompt, GenerateError> {
        self.check_length(text, tokens_max)?;
        self.check_encodable(text)?;
        Ok(encode_text(&self.tokenizer, text).into())
    }

    fn encode_messages(
        &self,
        rendering: &Rendering<'_>,
        runs: Option<&mut RunCache>,
    ) -> Result<EncodedPrompt, GenerateError> {
        let Rendering { messages, tools, variables, .. } = *rendering;
        let now = SystemTime::now();
        let whole = self.render(messages, tools, variables, now)?;
        self.check_length(whole.text(), rendering.tokens_max)?;
        self.check_encodable(whole.text())?;
        let last = messages.iter().rposition(|message| message.role == "user").filter(|_| rendering.wants_subject);
        let part = last.map_or(0..0, |last| {
            let mut without = messages.to_vec();
            without[last].content.clear();
            // A template writes a message somewhere: where the text changes when the message is empty. Some templates refuse
            // empty messages.
            let without = self.render(&without, tools, variables, now);
            without.map_or(0..0, |without| difference(whole.text().as_bytes(), without.text().as_bytes()))
        });
        let (tokens, subject) = self.tokenizer.encode_prompt_with_part(&whole, part, runs);
        let opens_reasoning = self.reasoning_format.as_ref().map(|format| format.is_open_after(whole.text()));
        let subject = if subject.is_empty() { 0..tokens.len() } else { subject };
        Ok(EncodedPrompt { tokens, subject, truncated_tokens: 0, opens_reasoning })
    }

    /// Renders a conversation in the model's chat format. Some formats state the date, hence `now`.
    fn render(
        &self,
        messages: &[Message],
        tools: &Tools,
        variables: &Map<String, Value>,
        now: SystemTime,
    ) -> Result<RenderedPrompt, GenerateError> {
        let template = self.template.as_ref().ok_or(GenerateError::NoTemplate)?;
        let messages: Vec<_> = messages.iter().map(Message::to_json).collect();
        let (messages, tools) = self.tool_format.conversation(&messages, tools.offered());
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let conversation = Conversation {
            messages: &messages,
            tools: tools.as_ref(),
            next_turn: NextTurn::Assistant,
            variables,
            now_unix_s: i64::try_from(now).unwrap_or(i64::MAX),
        };
        Ok(template.render(&conversation)?)
    }

    /// Refuses a text that is too long whatever its tokens are.
    fn check_length(&self, text: &str, tokens_max: Option<usize>) -> Result<(), GenerateError> {
        let bytes = text.len();
        match tokens_max {
            Some(context) if self.tokenizer.tokens_min(bytes) > context => {
                Err(GenerateError::PromptTooLarge { bytes, context })
            }
            _ => Ok(()),
        }
    }

    /// Refuses characters that the vocabulary has no token for: encoding would leave them out in silence.
    fn check_encodable(&self, text: &str) -> Result<(), GenerateError> {
        let missing = self.tokenizer.first_unencodable(text);
        missing.map_or(Ok(()), |character| Err(GenerateError::Unencodable(character)))
    }
}

/// Ends work whose result is not wanted any more.
fn check(cancellation: &CancellationToken) -> Result<(), GenerateError> {
    if cancellation.is_cancelled() { Err(GenerateError::Abandoned) } else { Ok(()) }
}

/// Encodes plain text, after the BOS token where the model wants one.
pub(crate) fn encode_text(tokenizer: &Tokenizer, text: &str) -> Vec<TokenId> {
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    bos.into_iter().chain(tokenizer.encode(text, SpecialTokens::AsText)).collect()
}

/// Returns the range of `text` that is at neither end of `other`.
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
