//! Prompts that are too long.

use crate::encoding::Encoded;
use crate::engine::GenerateError;
use crate::{Engine, Message, Prompt, Request};

/// What happens to a prompt that does not fit the context. Nothing is ever left out unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truncation {
    /// The request is refused.
    #[default]
    Refuse,
    /// The oldest part is left out, and the answer's usage tells how many tokens that were. Of a conversation these are its first
    /// messages, but never system messages nor the last one; of a text its first tokens.
    DropOldest,
}

impl Engine {
    /// The tokens of a request's prompt, at most `room` of them where it allows to leave some out, and how many were. If
    /// leaving out does not help, they are more, and the request will be refused.
    pub(crate) fn encode_within(&self, request: &Request, room: usize) -> Result<(Encoded, usize), GenerateError> {
        let Request { prompt, tools, .. } = request;
        let all = match prompt {
            Prompt::Messages(messages) => self.encode_messages(messages, tools, request.embeddings)?,
            Prompt::Text(_) | Prompt::Tokens(_) => self.encode(prompt)?.into(),
        };
        let count = all.tokens.len();
        if count <= room || request.truncation == Truncation::Refuse {
            return Ok((all, 0));
        }
        let kept = match prompt {
            Prompt::Messages(messages) => self.encode_latest(messages, request, room)?,
            Prompt::Text(_) | Prompt::Tokens(_) => {
                // The token that begins every text stays.
                let bos = self.tokenizer().bos().filter(|bos| all.tokens.first() == Some(bos) && room > 1);
                let rest = room - usize::from(bos.is_some());
                let kept = bos.into_iter().chain(all.tokens[count - rest..].iter().copied());
                kept.collect::<Vec<u32>>().into()
            }
        };
        let dropped = count - kept.tokens.len();
        Ok((kept, dropped))
    }

    /// The conversation without as many of its first messages as need be.
    fn encode_latest(&self, messages: &[Message], request: &Request, room: usize) -> Result<Encoded, GenerateError> {
        let mut kept = messages.to_vec();
        loop {
            let encoded = self.encode_messages(&kept, &request.tools, request.embeddings)?;
            let oldest = kept[..kept.len().saturating_sub(1)].iter().position(|message| message.role != "system");
            match oldest {
                Some(oldest) if encoded.tokens.len() > room => drop(kept.remove(oldest)),
                _ => return Ok(encoded),
            }
        }
    }
}
