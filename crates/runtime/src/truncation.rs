//! Prompts that are too long.

use crate::engine::GenerateError;
use crate::{Engine, Message, Prompt, Tools};

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
    /// The tokens of a prompt, at most `room` of them where `truncation` allows to leave some out, and how many were. If
    /// leaving out does not help, they are more, and the request will be refused.
    pub(crate) fn encode_within(
        &self,
        prompt: &Prompt,
        tools: &Tools,
        room: usize,
        truncation: Truncation,
    ) -> Result<(Vec<u32>, usize), GenerateError> {
        let all = self.encode_with_tools(prompt, tools)?;
        if all.len() <= room || truncation == Truncation::Refuse {
            return Ok((all, 0));
        }
        let kept = match prompt {
            Prompt::Messages(messages) => self.encode_latest(messages, tools, room)?,
            Prompt::Text(_) | Prompt::Tokens(_) => {
                // The token that begins every text stays.
                let bos = self.tokenizer().bos().filter(|bos| all.first() == Some(bos) && room > 1);
                let rest = room - usize::from(bos.is_some());
                bos.into_iter().chain(all[all.len() - rest..].iter().copied()).collect()
            }
        };
        let dropped = all.len() - kept.len();
        Ok((kept, dropped))
    }

    /// The conversation without as many of its first messages as need be.
    fn encode_latest(&self, messages: &[Message], tools: &Tools, room: usize) -> Result<Vec<u32>, GenerateError> {
        let mut kept = messages.to_vec();
        loop {
            let tokens = self.encode_with_tools(&Prompt::Messages(kept.clone()), tools)?;
            let oldest = kept[..kept.len().saturating_sub(1)].iter().position(|message| message.role != "system");
            match oldest {
                Some(oldest) if tokens.len() > room => drop(kept.remove(oldest)),
                _ => return Ok(tokens),
            }
        }
    }
}
