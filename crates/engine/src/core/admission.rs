//! How requests come in and sequences start.

use ruvllm_kv::{KvCache, Namespace, OutOfPages, PrefixMatch};
use ruvllm_runner::{HeldAdapter, PAGE_TOKENS, RunnerLimits};

use super::{Core, CoreOptions};
use crate::constraint::MaskThread;
use crate::sequence::Sequence;
use crate::{Constraint, Event, PrefixReport, PrefixUse, Request, SequenceId, StepError, SubmitError, Tenant};

impl Core {
    /// Checks a request and queues it.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId, SubmitError> {
        self.submit_constrained(request, None)
    }

    /// The same for an answer that must look a certain way.
    pub fn submit_constrained(
        &mut self,
        request: Request,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<SequenceId, SubmitError> {
        if let Some(reason) = &self.device_lost {
            return Err(SubmitError::DeviceLost(reason.clone()));
        }
        if request.adapter.as_ref().is_some_and(|adapter| !self.runner.has_adapter(adapter.id)) {
            return Err(SubmitError::NoSuchAdapter);
        }
        let namespaces = self.namespaces(&request.tenant, request.adapter.as_ref(), &request.prompt);
        let namespace = namespaces.first();
        let is_apart = |adapter: &&HeldAdapter| namespace == self.namespace(&request.tenant, Some(adapter.id));
        let adapter = request.adapter.as_ref().filter(is_apart).map(|adapter| adapter.id);
        let shares = self.options.shares_prefixes;
        let owner = || (if shares { Tenant::default() } else { request.tenant.clone() }, adapter);
        self.tenants.meet(&request.tenant, namespace, owner, &mut self.cache);
        let length_max = self.check(&request, namespace)?;
        self.check_choice(&request, constraint.is_some())?;
        self.check_queue(&request)?;
        if constraint.is_some() && self.mask_thread.is_none() {
            self.mask_thread = Some(MaskThread::start().map_err(|error| SubmitError::NoThread(error.to_string()))?);
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        let mut sequence = Sequence::new(id, request, namespaces, length_max);
        if !self.runner.limits().caches_prefixes {
            sequence.prefix_use = PrefixUse::OFF;
        }
        sequence.constraint = constraint;
        sequence.submitted = self.now;
        self.schedule.enqueue(sequence);
        Ok(id)
    }

    /// Refuses what a runner cannot be told that chooses tokens by itself, and a prompt that it would read otherwise.
    fn check_choice(&self, request: &Request, is_constrained: bool) -> Result<(), SubmitError> {
        if self.runner.limits().chooses_tokens {
            let constraint = is_constrained.then_some("a grammar");
            if let Some(field) = request.sampling.beyond_choice().or(constraint) {
                return Err(SubmitError::ChoosesTokens { field });
            }
        }
        self.runner.check_prompt(&request.prompt).map_err(SubmitError::Prompt)
    }

    /// A tenant may have as much waiting as there is room left, in requests and in tokens. So one alone fills half of the queue,
    /// two fill two thirds, and there is always room for the first request of another.
    fn check_queue(&self, request: &Request) -> Result<(), SubmitError> {
        let CoreOptions { queue_max, queue_tokens_max, .. } = self.options;
        let all = self.schedule.queue_length(None);
        if all.requests >= queue_max || all.tokens >= queue_tokens_max {
            return Err(SubmitError::QueueFull(all.requests));
        }
        let own = self.schedule.queue_length(Some(&request.tenant));
        let fits = own.requests < queue_max - all.requests
            && own.tokens + request.prompt.len() <= queue_tokens_max - all.tokens;
        if own.requests == 0 || fits { Ok(()) } else { Err(SubmitError::TenantQueueFull { waiting: own.requests }) }
    }

    /// The sequence's length at its end, if the request can be served at all.
    fn check(&self, request: &Request, namespace: Namespace) -> Result<usize, SubmitError> {
        let RunnerLimits { vocabulary, context, .. } = *self.runner.limits();
        let context = request.context.map_or(context, |own| own.min(context));
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if let Some(token) = request.prompt.iter().find(|token| **token as usize >= vocabulary) {
            return Err(SubmitError::NoSuchToken { token: *token, vocabulary });
        }
        if prompt >= context {
            return Err(SubmitError::PromptTooLong { prompt, context });
        }
        let length_max = match request.max_tokens {
            None => context,
            Some(0) => return Err(SubmitError::NothingToGenerate),
            Some(max_tokens) => match prompt.checked_add(max_tokens) {
                Some(length) if length <= context => length,
                _ => return Err(SubmitError::TooLong { prompt, max_tokens, context }),
            },
        };
        let (needed, pages) = (KvCache::pages_for(length_max), self.cache.pages_max(namespace));
        if needed > pages {
            return Err(SubmitError::TooLargeForCache { needed, pages });
        }
        if request.states_of.is_some() && !self.options.keeps_states {
            return Err(SubmitError::NoStates);
        }
        request.sampling.check(vocabulary)?;
        Ok(length_max)
    }

    /// Starts waiting sequences, in the order of the schedule, while there is room for them. One for which there is none although
    /// nothing runs would keep all others waiting forever: it fails.
    pub(super) fn admit(&mut self, results: &mut Vec<Result<Event, StepError>>) {
        if self.schedule.waiting().is_empty() {
            return;
        }
        self.schedule.sort_waiting();
        if self.schedule.running().len() >= self.options.sequences_max {
            match self.schedule.victim_for_waiting_tenant() {
                Some(index) => self.preempt(index),
                None => return,
            }
        }
        let mut next = 0;
        while next < self.schedule.waiting().len() && self.schedule.running().len() < self.options.sequences_max {
            if let Some((index, shared)) = self.being_computed(&self.schedule.waiting()[next]) {
                if self.cache.has_states() {
                    self.schedule.running_mut()[index].plan_snapshot(shared);
                }
                next += 1;
            } else if !self.start(next) {
                if self.interrupt_observation() {
                    continue;
                }
                if !self.schedule.running().is_empty() {
                    return;
                }
                results.push(Err(StepError::OutOfMemory { sequence: self.schedule.remove_waiting(next).id }));
            }
        }
    }

    /// Returns a running sequence that is about to compute a page that this one needs too, which is worth waiting for, and
    /// how many tokens of whole pages they share.
    fn being_computed(&self, sequence: &Sequence) -> Option<(usize, usize)> {
        let wanted = &sequence.tokens[..sequence.tokens.len() - 1];
        let shared = |other: &Sequence| {
            let tokens = other.tokens.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            let tokens = other.namespaces.shared_tokens(&sequence.namespaces, tokens);
            Some(tokens / PAGE_TOKENS * PAGE_TOKENS).filter(|shared| *shared > other.computed)
        };
        let computes = |other: &Sequence| other.prefix_use.enabled && !other.is_generating();
        let running = self.schedule.running().iter().enumerate().filter(|_| sequence.prefix_use.enabled);
        running.filter(|(_, other)| computes(other)).find_map(|(index, other)| Some((index, shared(other)?)))
    }

    /// Starts a waiting sequence if there is room for all of its tokens, and a page for the next of each that runs.
    fn start(&mut self, index: usize) -> bool {
        let Ok(start) = self.begin(index) else { return false };
        let mut divergence = start.divergence;
        if let Some(divergence) = divergence.as_mut().filter(|_| self.options.shares_prefixes) {
            // It may be another tenant's text.
            divergence.cached.clear();
        }
        let mut sequence = self.schedule.remove_waiting(index);
        sequence.table = start.table;
        sequence.computed = start.tokens;
        sequence.on_disk = start.on_disk.into();
        if self.cache.has_states() && sequence.prefix_use.enabled {
            sequence.plan_snapshots(start.known_tokens, self.cache.snapshot_spacing());
        }
        let waited = self.now.saturating_sub(sequence.submitted);
        let report = PrefixReport { cached_tokens: start.tokens, loaded_tokens: 0, waited, divergence };
        sequence.start(report, self.fast_rows_min);
        self.schedule.start(sequence);
        self.row_cost.restart();
        true
    }

    /// Begins a waiting sequence with what is cached of it. A sequence alone may need the room between those pages: a slab that
    /// holds one page of a colder format has no place for others. Then everything is computed.
    fn begin(&mut self, index: usize) -> Result<PrefixMatch, OutOfPages> {
        let Sequence { namespaces, tokens, length_max, prefix_use, .. } = &self.schedule.waiting()[index];
        let tokens_min = prefix_use.enabled.then_some(prefix_use.tokens_min);
        let needs_more = KvCache::pages_for(*length_max) > KvCache::pages_for(tokens.len());
        let spare = self.schedule.running().len() + usize::from(needs_more);
        let runner = &mut *self.runner;
        let begun = self.cache.match_prefix(*namespaces, tokens, tokens_min, spare, runner);
        if begun.is_err() && self.schedule.running().is_empty() {
            return self.cache.match_prefix(*namespaces, tokens, None, spare, runner);
        }
        begun
    }
}
