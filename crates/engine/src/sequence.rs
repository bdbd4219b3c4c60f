//! A sequence that holds pages, and how it takes its next tokens.

use ruvllm_kv::PageTable;

use crate::sampler::{NotANumber, Sampled, Sampler};
use crate::speculation::Drafter;
use crate::{Counts, Event, FinishReason, Request, SequenceId, StepError};

#[derive(Debug)]
pub(crate) struct Running {
    pub id: SequenceId,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// How many of them have keys and values in the pages. What pages hold beyond is of guesses that were wrong; it is
    /// overwritten before anything reads it.
    pub computed: usize,
    /// Where the sequence ends at the latest.
    pub length_max: usize,
    pub end_tokens: Vec<u32>,
    pub pages: PageTable,
    /// Absent where speculation is off.
    pub drafter: Option<Drafter>,
    sampler: Sampler,
    counts: Counts,
}

/// Whether a sequence goes on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    GoesOn,
    Ended,
}

impl Running {
    pub(crate) fn new(id: SequenceId, request: Request, length_max: usize, pages: PageTable) -> Self {
        let drafter = request.speculation.applies(&request.sampling).then(|| Drafter::new(&request.prompt));
        Self {
            id,
            sampler: Sampler::new(request.sampling, &request.prompt),
            tokens: request.prompt,
            computed: 0,
            length_max,
            end_tokens: request.end_tokens,
            pages,
            drafter,
            counts: Counts::default(),
        }
    }

    /// Tokens that are not computed yet.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Guesses that can be of use: behind all of them there must be room for one token more.
    pub(crate) fn drafts_max(&self) -> usize {
        self.length_max.saturating_sub(self.tokens.len() + 1)
    }

    /// Chooses tokens row by row for as long as `draft` foresaw them. `sample` chooses from the logits of a row: 0 is
    /// that of the last token, 1 that of the first guess, and so on. Each token is drawn from the very logits that it
    /// would be drawn from without a draft, so it is the same token; a row behind a wrong guess is not looked at.
    pub(crate) fn advance(
        &mut self,
        draft: &[u32],
        mut sample: impl FnMut(&mut Sampler, usize) -> Result<Sampled, NotANumber>,
        results: &mut Vec<Result<Event, StepError>>,
    ) -> Outcome {
        let known = self.tokens.len();
        self.counts.steps += 1;
        self.counts.drafted += draft.len();
        let mut accepted = 0;
        loop {
            let Ok(sampled) = sample(&mut self.sampler, accepted) else {
                results.push(Err(StepError::NotANumber { sequence: self.id }));
                return Outcome::Ended;
            };
            let token = sampled.token;
            self.tokens.push(token);
            let is_foreseen = draft.get(accepted) == Some(&token);
            if is_foreseen {
                // Its row is computed already.
                accepted += 1;
                self.computed += 1;
                self.counts.accepted += 1;
            }
            let finish = self.finish(token);
            results.push(Ok(Event { sequence: self.id, sampled, finish, counts: self.counts }));
            if finish.is_some() {
                return Outcome::Ended;
            }
            if !is_foreseen {
                break;
            }
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.verified(draft.len(), accepted, &self.tokens, self.tokens.len() - known);
        }
        Outcome::GoesOn
    }

    fn finish(&self, token: u32) -> Option<FinishReason> {
        if self.end_tokens.contains(&token) {
            return Some(FinishReason::Stop);
        }
        (self.tokens.len() >= self.length_max).then_some(FinishReason::Length)
    }
}

#[cfg(test)]
mod tests;
