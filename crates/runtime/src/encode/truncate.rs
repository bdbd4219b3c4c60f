//! Shortens prompts that leave no room for the answer.

use ruvllm_engine::TokenId;
use ruvllm_text::RunCache;

use super::{EncodedPrompt, PromptEncoder, Rendering, check};
use crate::{CancellationToken, GenerateError, Message, Prompt, Request};

/// What happens to a prompt that does not fit the context. Nothing is ever left out unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truncation {
    /// Refuses the request.
    #[default]
    Refuse,
    /// Leaves out the oldest part and reports the number of tokens in the answer's usage: the first messages of a
    /// conversation, but never system messages nor the last message; the first tokens of a text.
    DropOldest,
    /// Leaves out the end of a text, or of a conversation's last user message. Meant for embeddings: what the template puts
    /// after the message stays.
    CutEnd,
}

impl PromptEncoder {
    /// Shortens an encoded prompt to the room that the request leaves for it. `runs` holds the texts encoded so far.
    pub(super) fn truncate(
        &self,
        request: &Request,
        whole: EncodedPrompt,
        runs: Option<RunCache>,
        cancellation: &CancellationToken,
    ) -> Result<EncodedPrompt, GenerateError> {
        let count = whole.tokens.len();
        let context = request.context_in(self.context);
        let room = context.saturating_sub(request.answer_room(context)).max(1);
        if count <= room {
            return Ok(whole);
        }
        let kept = match (request.truncation, &request.prompt) {
            (Truncation::Refuse, _) => return Ok(whole),
            (Truncation::CutEnd, _) => cut_end(whole, room),
            (Truncation::DropOldest, Prompt::Messages(messages)) => {
                self.encode_latest(messages, request, room, runs, cancellation)?
            }
            (Truncation::DropOldest, Prompt::Text(_) | Prompt::Tokens(_)) => {
                // The token that begins every text stays.
                let bos = self.tokenizer.bos().filter(|bos| whole.tokens.first() == Some(bos) && room > 1);
                let rest = room - usize::from(bos.is_some());
                let kept = bos.into_iter().chain(whole.tokens[count - rest..].iter().copied());
                kept.collect::<Vec<TokenId>>().into()
            }
        };
        let truncated_tokens = count - kept.tokens.len();
        Ok(EncodedPrompt { truncated_tokens, ..kept })
    }

    /// Encodes the conversation without as few of its first messages as possible. More messages never take fewer tokens, so
    /// the number is searched for from the short end and then by halving: no try is much longer than what fits.
    fn encode_latest(
        &self,
        messages: &[Message],
        request: &Request,
        room: usize,
        mut runs: Option<RunCache>,
        cancellation: &CancellationToken,
    ) -> Result<EncodedPrompt, GenerateError> {
        let before_last = &messages[..messages.len().saturating_sub(1)];
        let droppable = before_last.iter().filter(|message| message.role != "system").count();
        let mut encode = |dropped: usize| {
            check(cancellation)?;
            let rendering = Rendering {
                messages: &without_oldest(messages, dropped),
                tools: &request.tools,
                variables: &request.template_variables,
                wants_subject: request.embeddings,
                tokens_max: None,
            };
            self.encode_messages(&rendering, runs.as_mut())
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

/// Leaves out the last tokens of the subject. One token of it stays, even if the prompt is then too long still.
fn cut_end(whole: EncodedPrompt, room: usize) -> EncodedPrompt {
    let EncodedPrompt { mut tokens, subject, opens_reasoning, .. } = whole;
    let surplus = tokens.len().saturating_sub(room).min(subject.len().saturating_sub(1));
    let end = subject.end - surplus;
    tokens.drain(end..subject.end);
    EncodedPrompt { tokens, subject: subject.start..end, truncated_tokens: surplus, opens_reasoning }
}

/// Returns a conversation without its first `count` messages, not counting system messages and the last one.
fn without_oldest(messages: &[Message], mut count: usize) -> Vec<Message> {
    let last = messages.len().saturating_sub(1);
    let is_kept = |(index, message): &(usize, &Message)| {
        let is_dropped = count > 0 && *index < last && message.role != "system";
        count -= usize::from(is_dropped);
        !is_dropped
    };
    messages.iter().enumerate().filter(is_kept).map(|(_, message)| message.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_subject_is_cut_and_what_follows_it_stays() {
        let whole = EncodedPrompt { subject: 2..6, ..(0..8).collect::<Vec<u32>>().into() };
        let cut = |room| {
            let EncodedPrompt { tokens, subject, truncated_tokens, .. } = cut_end(whole.clone(), room);
            (tokens, subject, truncated_tokens)
        };
        assert_eq!(cut(6), (vec![0, 1, 2, 3, 6, 7], 2..4, 2));
        assert_eq!(cut(5), (vec![0, 1, 2, 6, 7], 2..3, 3));
        assert_eq!(cut(1), (vec![0, 1, 2, 6, 7], 2..3, 3), "a token of it stays");
    }
}
