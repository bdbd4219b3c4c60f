//! A sequence from its submission to its end, and how it takes its next tokens.

use std::collections::VecDeque;
use std::time::Duration;

use ruvllm_kv::{Namespace, PageHash, PageTable};

use crate::sampler::{NotANumber, Sampled, Sampler};
use crate::speculation::Drafter;
use crate::{Counts, Event, FinishReason, PrefixReport, PrefixUse, Request, SequenceId, StepError, Tenant};

/// Waits without pages, or runs with some. It can go from one to the other at any time: what it has generated stays.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: SequenceId,
    pub tenant: Tenant,
    pub priority: i8,
    pub deadline: Option<Duration>,
    pub prefix_use: PrefixUse,
    pub namespace: Namespace,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// How many of them have keys and values in the pages. What pages hold beyond is of guesses that were wrong; it is
    /// overwritten before anything reads it.
    pub computed: usize,
    /// Where the sequence ends at the latest.
    pub length_max: usize,
    pub end_tokens: Vec<u32>,
    pub table: PageTable,
    /// Pages that are still to be loaded from disk before anything is computed.
    pub on_disk: VecDeque<PageHash>,
    /// Absent where speculation is off, and before the sequence has run.
    pub drafter: Option<Drafter>,
    speculates: bool,
    pub prefix: Option<Box<PrefixReport>>,
    sampler: Sampler,
    counts: Counts,
}

/// Whether a sequence goes on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    GoesOn,
    Ended,
}

impl Sequence {
    pub(crate) fn new(id: SequenceId, request: Request, namespace: Namespace, length_max: usize) -> Self {
        Self {
            id,
            tenant: request.tenant,
            priority: request.priority,
            deadline: request.deadline,
            prefix_use: request.prefix_use,
            namespace,
            speculates: request.speculation.applies(&request.sampling),
            sampler: Sampler::new(request.sampling, &request.prompt),
            tokens: request.prompt,
            computed: 0,
            length_max,
            end_tokens: request.end_tokens,
            table: PageTable::default(),
            on_disk: VecDeque::new(),
            drafter: None,
            prefix: None,
            counts: Counts::default(),
        }
    }

    /// Gets ready to run, for the first time or again. Only the first time's report is of interest.
    pub(crate) fn start(&mut self, prefix: PrefixReport) {
        if self.counts.steps == 0 {
            self.prefix = Some(Box::new(prefix));
        }
        if self.speculates && self.drafter.is_none() {
            self.drafter = Some(Drafter::new(&self.tokens));
        }
    }

    /// Whether it has all keys and values but those of the token that it generated last.
    pub(crate) fn is_generating(&self) -> bool {
        self.pending() == 1 && self.on_disk.is_empty()
    }

    /// Whether it waits for pages from disk.
    pub(crate) fn is_loading(&self) -> bool {
        !self.on_disk.is_empty()
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
            let prefix = self.prefix.take();
            results.push(Ok(Event { sequence: self.id, sampled, finish, counts: self.counts, prefix }));
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
