//! A sequence from its submission to its end, and how it takes its next tokens.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use ruvllm_kv::{PageHash, PageTable, TextNamespaces};
use ruvllm_runner::{HeldAdapter, PAGE_TOKENS, RowsAdapter, TokenChoice, TokenId};

use crate::sampler::{NoToken, Sampled, Sampler};
use crate::speculation::{DraftBudget, DraftSource, Drafter, FORCED_CHANCE, ModelToken};
use crate::{
    Constraint, Counts, Event, FinishReason, PrefixReport, PrefixUse, Request, SequenceId, Speculation, StepError,
    Tenant,
};

/// Waits without pages, or runs with some. It can go from one to the other at any time: what it has generated stays.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: SequenceId,
    pub tenant: Tenant,
    adapter: Option<HeldAdapter>,
    /// The first token that it applies to.
    adapter_from: usize,
    pub priority: i8,
    pub deadline: Option<Duration>,
    pub prefix_use: PrefixUse,
    pub states_of: Option<Range<usize>>,
    pub namespaces: TextNamespaces,
    /// Prompt and generated tokens.
    pub tokens: Vec<TokenId>,
    prompt_tokens: usize,
    /// Whether rows of the prompt are fast; unknown before the sequence has run. It stays as it was when it runs again.
    is_fast: Option<bool>,
    /// How many of them have keys and values in the pages. What pages hold beyond is of draft tokens that were wrong; it is
    /// overwritten before anything reads it.
    pub computed: usize,
    /// Where the sequence ends at the latest.
    pub length_max: usize,
    pub end_tokens: Vec<TokenId>,
    pub table: PageTable,
    /// Pages that are still to be loaded from disk before anything is computed.
    pub on_disk: VecDeque<PageHash>,
    /// Tokens of the prompt behind which snapshots of the recurrent state are to be taken, in their order.
    snapshots_at: VecDeque<usize>,
    /// The last snapshot that was taken while it generated; the next one replaces it.
    pub latest_snapshot: Option<PageHash>,
    /// Absent where speculation is off, and before the sequence has run.
    pub drafter: Option<Drafter>,
    speculates: bool,
    /// What its tokens may be; elsewhere while a step asks it.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whether tokens that the constraint leaves no choice about are drafted.
    drafts_forced_tokens: bool,
    /// What a draft model expects next.
    model_draft: Vec<ModelToken>,
    /// Where the last draft came from.
    draft_source: DraftSource,
    pub prefix: Option<Box<PrefixReport>>,
    /// When it was submitted, by the engine's time.
    pub submitted: Duration,
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
    pub(crate) fn new(id: SequenceId, request: Request, namespaces: TextNamespaces, length_max: usize) -> Self {
        Self {
            id,
            tenant: request.tenant,
            adapter_from: request.adapter.as_ref().map_or(0, |adapter| adapter.start(&request.prompt)),
            adapter: request.adapter,
            priority: request.priority,
            deadline: request.deadline,
            prefix_use: request.prefix_use,
            states_of: request.states_of,
            namespaces,
            speculates: request.speculation.applies(&request.sampling),
            constraint: None,
            submitted: Duration::ZERO,
            model_draft: Vec::new(),
            draft_source: DraftSource::Text,
            drafts_forced_tokens: request.speculation != Speculation::Off,
            sampler: Sampler::new(request.sampling, request.recall, &request.prompt),
            prompt_tokens: request.prompt.len(),
            is_fast: None,
            tokens: request.prompt,
            computed: 0,
            length_max,
            end_tokens: request.end_tokens,
            table: PageTable::default(),
            on_disk: VecDeque::new(),
            snapshots_at: VecDeque::new(),
            latest_snapshot: None,
            drafter: None,
            prefix: None,
            counts: Counts::default(),
        }
    }

    /// Returns its adapter as a batch has it.
    pub(crate) fn rows_adapter(&self) -> Option<RowsAdapter> {
        self.adapter.as_ref().map(|adapter| RowsAdapter { id: adapter.id, from: self.adapter_from })
    }

    /// Returns how a runner that chooses tokens by itself is to choose the next.
    pub(crate) fn choice(&self) -> TokenChoice {
        self.sampler.choice()
    }

    /// Gets ready to run, for the first time or again. Only the first time's report is of interest.
    pub(crate) fn start(&mut self, prefix: PrefixReport, fast_rows_min: Option<usize>) {
        let cached = prefix.cached_tokens + self.on_disk.len() * PAGE_TOKENS;
        let is_long = fast_rows_min.is_some_and(|min| self.prompt_tokens - cached.min(self.prompt_tokens) >= min);
        self.is_fast.get_or_insert(is_long);
        if self.counts.steps == 0 {
            self.prefix = Some(Box::new(prefix));
        }
        if self.speculates && self.drafter.is_none() {
            self.drafter = Some(Drafter::new(&self.tokens));
        }
    }

    /// Plans snapshots of the recurrent state, behind the tokens that are there already: every `spacing` tokens, where other
    /// texts go on otherwise than this one (`known_tokens`), and before the end of the prompt: that will be in the next
    /// prompt of a chat, but often not the tokens that begin the answer.
    pub(crate) fn plan_snapshots(&mut self, known_tokens: usize, spacing: usize) {
        let end = (self.tokens.len() - 1).saturating_sub(PAGE_TOKENS) / PAGE_TOKENS * PAGE_TOKENS;
        let spaced = (spacing..self.tokens.len()).step_by(spacing);
        let mut planned: Vec<usize> = spaced.chain([known_tokens, end]).collect();
        let there = self.computed + self.on_disk.len() * PAGE_TOKENS;
        planned.retain(|tokens| *tokens > there && *tokens < self.tokens.len());
        planned.sort_unstable();
        planned.dedup();
        self.snapshots_at = planned.into();
    }

    /// Plans one more, which another sequence will begin from.
    pub(crate) fn plan_snapshot(&mut self, tokens: usize) {
        let index = self.snapshots_at.partition_point(|planned| *planned < tokens);
        if self.snapshots_at.get(index) != Some(&tokens) && tokens > self.computed {
            self.snapshots_at.insert(index, tokens);
        }
    }

    /// Returns how many tokens can be computed at once: a step ends where a snapshot is to be taken, and where fast rows end.
    pub(crate) fn rows_max(&self) -> usize {
        let next = self.snapshots_at.iter().find(|tokens| **tokens > self.computed);
        let end = if self.is_fast() { self.prompt_tokens } else { self.tokens.len() };
        next.map_or(end, |tokens| end.min(*tokens)) - self.computed
    }

    /// Whether the next row is a fast one: a row's place in its text decides, and nothing that happens to run beside it.
    pub(crate) fn is_fast(&self) -> bool {
        self.is_fast == Some(true) && self.computed < self.prompt_tokens
    }

    /// Whether a snapshot of the state is to be taken after a step: where it was planned, and at the end of each page that is
    /// generated.
    pub(crate) fn is_snapshot_due(&mut self) -> bool {
        let is_planned = self.snapshots_at.front() == Some(&self.computed);
        while self.snapshots_at.front().is_some_and(|tokens| *tokens <= self.computed) {
            self.snapshots_at.pop_front();
        }
        is_planned || self.is_generating() && self.computed.is_multiple_of(PAGE_TOKENS)
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

    /// Draft tokens that can be of use: behind all of them there must be room for one token more.
    pub(crate) fn drafts_max(&self) -> usize {
        self.length_max.saturating_sub(self.tokens.len() + 1)
    }

    /// Draft tokens what comes next and adds it to `drafts`: what the constraint leaves no choice about, or else what the text
    /// suggests.
    pub(crate) fn draft(&mut self, count_max: usize, draft_budget: &mut DraftBudget, drafts: &mut Vec<TokenId>) {
        let forced = if count_max > 0 { self.forced() } else { Vec::new() };
        self.draft_source = DraftSource::Text;
        if !forced.is_empty() {
            self.draft_source = DraftSource::Constraint;
            let mut chance = 1.0;
            drafts.extend(forced.into_iter().take(count_max).take_while(|_| {
                chance *= FORCED_CHANCE;
                draft_budget.add_if_worth(chance)
            }));
            return;
        }
        let Some(drafter) = &mut self.drafter else { return };
        let first = drafts.len();
        if self.model_draft.is_empty() {
            drafter.draft(&self.tokens, &self.end_tokens, count_max, draft_budget, drafts);
        } else {
            self.draft_source = DraftSource::Model;
            let worth = self.model_draft.iter().take(count_max);
            drafts.extend(worth.take_while(|one| draft_budget.add_if_worth(one.chance)).map(|one| one.token));
        }
        if let Some(constraint) = &mut self.constraint {
            let is_end = |token: &TokenId| self.end_tokens.contains(token);
            let text = drafts[first..].iter().position(is_end).unwrap_or(drafts.len() - first);
            let allowed = constraint.count_allowed(&drafts[first..first + text]);
            if self.draft_source == DraftSource::Text {
                drafter.take_back(drafts.len() - first - allowed, draft_budget);
            }
            drafts.truncate(first + allowed);
        }
    }

    /// Returns the tokens that the constraint leaves no choice about.
    pub(crate) fn forced(&mut self) -> Vec<TokenId> {
        match &mut self.constraint {
            Some(constraint) if self.drafts_forced_tokens => constraint.forced(),
            _ => Vec::new(),
        }
    }

    /// Sets what a draft model expects next, which cost `price` tokens each that could have been generated in that time.
    pub(crate) fn set_model_draft(&mut self, draft: Vec<ModelToken>, price: f32) {
        if let Some(drafter) = self.drafter.as_mut().filter(|_| !draft.is_empty()) {
            drafter.spend(price * draft.len() as f32);
        }
        self.model_draft = draft;
    }

    /// Returns how many tokens it has generated.
    pub(crate) fn generated(&self) -> usize {
        self.counts.steps + self.counts.accepted
    }

    /// Chooses tokens row by row for as long as `draft` foresaw them. `sample` chooses from the logits of a row: 0 is
    /// that of the last token, 1 that of the first draft, and so on. Each token is drawn from the very logits that it
    /// would be drawn from without a draft, so it is the same token; a row behind a wrong draft is not looked at.
    pub(crate) fn advance(
        &mut self,
        draft: &[TokenId],
        mut sample: impl FnMut(&mut Sampler, usize) -> Result<Sampled, NoToken>,
        results: &mut Vec<Result<Event, StepError>>,
    ) -> Outcome {
        let known = self.tokens.len();
        self.counts.steps += 1;
        self.counts.drafted += draft.len();
        let is_of_model = self.draft_source == DraftSource::Model;
        self.counts.drafted_by_model += if is_of_model { draft.len() } else { 0 };
        let mut accepted = 0;
        loop {
            let sampled = match sample(&mut self.sampler, accepted) {
                Ok(sampled) => sampled,
                Err(none) => {
                    results.push(Err(none.of(self.id)));
                    return Outcome::Ended;
                }
            };
            let token = sampled.token;
            if let Some(constraint) = self.constraint.as_mut().filter(|_| !self.end_tokens.contains(&token))
                && let Err(error) = constraint.accept(token)
            {
                results.push(Err(StepError::Constraint { sequence: self.id, error }));
                return Outcome::Ended;
            }
            self.tokens.push(token);
            let is_foreseen = draft.get(accepted) == Some(&token);
            if is_foreseen {
                // Its row is computed already.
                accepted += 1;
                self.computed += 1;
                self.counts.accepted += 1;
                self.counts.accepted_by_model += usize::from(is_of_model);
            }
            let finish = self.finish(token);
            let prefix = self.prefix.take();
            results.push(Ok(Event { sequence: self.id, sampled, finish, counts: self.counts, prefix, states: None }));
            if finish.is_some() {
                return Outcome::Ended;
            }
            if !is_foreseen {
                break;
            }
        }
        if let Some(drafter) = &mut self.drafter {
            let (counts, generated) = ((draft.len(), accepted), self.tokens.len() - known);
            drafter.verified(self.draft_source, &self.model_draft, counts, &self.tokens, generated);
        }
        self.model_draft.clear();
        Outcome::GoesOn
    }

    fn finish(&self, token: TokenId) -> Option<FinishReason> {
        let is_complete = self.constraint.as_ref().is_some_and(|constraint| constraint.is_complete());
        if is_complete || self.end_tokens.contains(&token) {
            return Some(FinishReason::Stop);
        }
        (self.tokens.len() >= self.length_max).then_some(FinishReason::Length)
    }
}

#[cfg(test)]
mod tests;
