//! Prompts that are too long.

use crate::encoding::Encoded;
use crate::engine::GenerateError;
use crate::{Engine, Message, Patience, Prompt, Request};

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
    pub(crate) fn encode_within(
        &self,
        request: &Request,
        room: usize,
        patience: &Patience,
    ) -> Result<(Encoded, usize), GenerateError> {
        let Request { prompt, tools, .. } = request;
        let bytes_fit = (request.truncation == Truncation::Refuse).then(|| self.context());
        let all = match prompt {
            Prompt::Messages(messages) => self.encode_messages(messages, tools, request.embeddings, bytes_fit)?,
            Prompt::Text(text) => {
                self.check_bytes(text.len(), bytes_fit)?;
                self.encode(prompt)?.into()
            }
            Prompt::Tokens(_) => self.encode(prompt)?.into(),
        };
        check(patience)?;
        let count = all.tokens.len();
        if count <= room || request.truncation == Truncation::Refuse {
            return Ok((all, 0));
        }
        let kept = match prompt {
            Prompt::Messages(messages) => self.encode_latest(messages, request, room, patience)?,
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

    /// The conversation without as few of its first messages as need be. More messages never take fewer tokens, so their number
    /// is searched for from the short end and then by halving: no try is much longer than what fits.
    fn encode_latest(
        &self,
        messages: &[Message],
        request: &Request,
        room: usize,
        patience: &Patience,
    ) -> Result<Encoded, GenerateError> {
        let before_last = &messages[..messages.len().saturating_sub(1)];
        let droppable = before_last.iter().filter(|message| message.role != "system").count();
        let encode = |dropped: usize| {
            check(patience)?;
            self.encode_messages(&without_oldest(messages, dropped), &request.tools, request.embeddings, None)
        };
        let mut fits = encode(droppable)?;
        let (mut too_few, mut enough) = (0, droppable);
        if fits.tokens.len() > room {
            return Ok(fits);
        }
        let mut step = 1;
        while enough - too_few > 1 {
            let dropped = enough.saturating_sub(step).max(too_few + (enough - too_few) / 2);
            let encoded = encode(dropped)?;
            if encoded.tokens.len() <= room {
                (fits, enough, step) = (encoded, dropped, step.saturating_mul(2));
            } else {
                (too_few, step) = (dropped, usize::MAX);
            }
        }
        Ok(fits)
    }
}

/// Ends work that nobody waits for any more.
fn check(patience: &Patience) -> Result<(), GenerateError> {
    if patience.is_over() { Err(GenerateError::Abandoned) } else { Ok(()) }
}

/// A conversation without its first messages, but for those of the system and the last.
fn without_oldest(messages: &[Message], mut count: usize) -> Vec<Message> {
    let last = messages.len().saturating_sub(1);
    let is_kept = |(index, message): &(usize, &Message)| {
        let is_dropped = count > 0 && *index < last && message.role != "system";
        count -= usize::from(is_dropped);
        !is_dropped
    };
    messages.iter().enumerate().filter(is_kept).map(|(_, message)| message.clone()).collect()
}
