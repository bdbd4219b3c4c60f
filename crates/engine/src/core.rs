//! The engine: sequences are submitted, `step` moves all of them on by schedule, forward pass and sampling.

mod admission;
mod drafting;
mod evaluate;
mod keep_hidden_states;
mod observe;
mod prefix_events;
#[cfg(test)]
mod simulation;

pub use evaluate::EvaluateError;
pub use observe::{Observed, TextToObserve};
pub use prefix_events::PrefixEvent;

use std::collections::BTreeSet;
use std::time::Duration;

use ruvllm_kv::{CacheStats, KvCache, KvOptions, LookupStats, Namespace, PageTable, Quota, TextNamespaces, Tiers};
use ruvllm_runner::{
    AdapterId, Batch, HeldAdapter, PAGE_TOKENS, PageFormat, PassTimes, Rotation, Runner, RunnerError, RunnerLimits,
    TokenId,
};

use self::observe::Observation;
use crate::constraint::{MaskThread, Masks};
use crate::schedule::{Plan, Schedule, StepLimits};
use crate::sequence::{Outcome, Sequence};
use crate::speculation::{DraftModel, RowCost};
use crate::tenants::Tenants;
use crate::{ConstraintError, Event, SequenceId, StepError, Tenant};

/// Pages that are loaded from disk in a step while others generate. Each takes a fraction of a millisecond.
const LOADED_BESIDE_OTHERS: usize = 4;

/// Limits of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreOptions {
    /// Maximum number of running sequences.
    pub sequences_max: usize,
    /// Maximum number of waiting requests, and of the tokens of their prompts together.
    pub queue_max: usize,
    pub queue_tokens_max: usize,
    /// How much longer the others may wait for their next tokens while a prompt is computed.
    pub slowdown_max: f64,
    pub kv: KvOptions,
    /// Identifies the model in the prefix cache, on disk too.
    pub fingerprint: [u8; 32],
    /// Whether tenants find each other's prefixes. Then they can also tell, by the time to the first token, what others
    /// have asked.
    pub shares_prefixes: bool,
    /// What tenants may count on of the memory for keys and values. Without effect where they share prefixes.
    pub quotas: Vec<(Tenant, Quota)>,
    /// Whether hidden states are kept beside the keys and values of each token, for requests that want them.
    pub keeps_states: bool,
}

impl CoreOptions {
    /// Moderate limits, half-float keys and values within a budget, no disk.
    pub fn new(kv_budget_bytes: usize) -> Self {
        Self {
            sequences_max: 16,
            queue_max: 1024,
            queue_tokens_max: 8 << 20,
            slowdown_max: 2.0,
            kv: KvOptions { budget_bytes: kv_budget_bytes, ..KvOptions::new(Tiers::uniform(PageFormat::F16)) },
            fingerprint: [0; 32],
            shares_prefixes: false,
            quotas: Vec::new(),
            keeps_states: false,
        }
    }
}

/// A runner with its KV memory, and the sequences in flight.
#[derive(Debug)]
pub struct Core {
    runner: Box<dyn Runner>,
    cache: KvCache,
    schedule: Schedule,
    tenants: Tenants,
    options: CoreOptions,
    /// From how many tokens on, cached ones aside, a prompt is computed in the runner's fast way.
    fast_rows_min: Option<usize>,
    next_id: u64,
    now: Duration,
    row_cost: RowCost,
    /// Whether the last step read from disk: then its duration says nothing about computing.
    has_loaded: bool,
    /// How often a sequence was preempted.
    preemptions: u64,
    /// Why the runner cannot be used any more.
    device_lost: Option<String>,
    draft_model: Option<DraftModel>,
    /// Why it is not used any more.
    draft_failure: Option<String>,
    /// Runs since the first sequence with a constraint.
    mask_thread: Option<MaskThread>,
    /// The text that is being observed.
    observation: Option<Observation>,
    // Buffers of a step, kept to avoid allocating.
    plan: Plan,
    batch: Batch,
}

impl Core {
    pub fn new(mut runner: Box<dyn Runner>, mut options: CoreOptions) -> Self {
        let RunnerLimits { kv_shape, hidden, state_bytes, caches_prefixes, .. } = *runner.limits();
        options.keeps_states &= hidden > 0;
        if options.keeps_states {
            options.kv.sidecar_bytes = Self::state_bytes(hidden);
        }
        if caches_prefixes {
            options.kv.reserve_states(kv_shape, state_bytes, options.sequences_max);
        } else {
            options.kv.reserve_slots(state_bytes, options.sequences_max);
            assert!(options.kv.disk.is_none() && options.kv.tiers.is_uniform(), "there is nothing to save or convert");
        }
        runner.reserve_states(options.kv.state_slots);
        runner.reserve_pages(options.kv.page_memory_bytes(kv_shape), options.kv.rotation);
        let mut cache = KvCache::new(kv_shape, &options.kv);
        let quotas = if options.shares_prefixes { &[][..] } else { &options.quotas };
        let tenants = Tenants::new(quotas, &mut cache);
        Self {
            runner,
            cache,
            schedule: Schedule::default(),
            tenants,
            options,
            fast_rows_min: None,
            next_id: 0,
            now: Duration::ZERO,
            row_cost: RowCost::default(),
            has_loaded: false,
            preemptions: 0,
            device_lost: None,
            draft_model: None,
            draft_failure: None,
            mask_thread: None,
            observation: None,
            plan: Plan::default(),
            batch: Batch::default(),
        }
    }

    /// Returns what the runner can do.
    pub fn limits(&self) -> &RunnerLimits {
        self.runner.limits()
    }

    pub fn is_idle(&self) -> bool {
        self.schedule.is_empty()
    }

    pub fn running(&self) -> usize {
        self.schedule.running().len()
    }

    pub fn waiting(&self) -> usize {
        self.schedule.waiting().len()
    }

    /// Tokens of the requests that wait.
    pub fn waiting_tokens(&self) -> usize {
        self.schedule.queue_length(None).tokens
    }

    /// How often a sequence was preempted.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Returns all tenants that ever asked for something, with the look-ups of prefixes in all of their namespaces.
    pub fn tenants(&self) -> impl Iterator<Item = (&Tenant, LookupStats)> {
        let lookups = |namespaces: &BTreeSet<Namespace>| namespaces.iter().map(|one| self.cache.lookups_of(*one)).sum();
        self.tenants.known().map(move |(tenant, namespaces)| (tenant, lookups(namespaces)))
    }

    /// Queues cached pages for writing, if there is a disk tier and as far as it accepts them without blocking. Returns how many
    /// remain unsaved. For idle engines; dropping the core saves what is left.
    pub fn queue_writes(&mut self) -> usize {
        self.cache.queue_writes(usize::MAX, &mut *self.runner) + self.cache.queue_states(&mut *self.runner)
    }

    /// Saves up to `pages` cached pages and blocks until they are on disk. Returns how many remain unsaved.
    pub fn save(&mut self, pages: usize) -> usize {
        self.cache.save(pages, &mut *self.runner)
    }

    /// Changes the format of cold KV pages and the basis of all, before anything is cached.
    pub fn set_cold(&mut self, cold: PageFormat, rotation: Rotation) {
        assert_eq!(self.cache.map().pages_in_use(), 0, "pages in use are stored in another basis");
        (self.options.kv.tiers.cold, self.options.kv.rotation) = (cold, rotation);
        self.runner.set_rotation(rotation);
        self.cache.set_cold(cold);
    }

    /// Sets from how many tokens on, cached ones aside, a prompt is computed in the runner's fast way; `None` is never. Panics if
    /// the runner has none, or pages are in use.
    pub fn set_fast_rows_min(&mut self, rows: Option<usize>) {
        assert!(rows.is_none() || self.runner.limits().has_fast_rows, "the runner has no fast way");
        assert_eq!(self.cache.map().pages_in_use(), 0, "pages in use were computed otherwise");
        self.fast_rows_min = rows;
    }

    /// Returns from how many tokens on, cached ones aside, a prompt is computed in the runner's fast way.
    pub fn fast_rows_min(&self) -> Option<usize> {
        self.fast_rows_min
    }

    /// Changes the memory for keys and values, up to its initial value. Evicts cached prefixes and preempts sequences, all but one
    /// if need be. Returns whether the new budget is kept.
    pub fn set_kv_budget(&mut self, bytes: usize) -> bool {
        let mut is_kept = self.cache.set_budget(bytes, &mut *self.runner);
        if !is_kept && self.interrupt_observation() {
            is_kept = self.cache.set_budget(bytes, &mut *self.runner);
        }
        while !is_kept && self.schedule.running().len() > 1 {
            let Some(index) = self.schedule.preemption_victim() else { break };
            self.preempt(index);
            is_kept = self.cache.set_budget(bytes, &mut *self.runner);
        }
        is_kept
    }

    /// Returns where the time of forward passes went since the last call; zeros if the device does not tell.
    pub fn take_pass_times(&mut self) -> PassTimes {
        self.runner.take_pass_times()
    }

    /// Lets other engines have the device until the next step.
    pub fn yield_device(&mut self) {
        self.runner.yield_device();
    }

    /// Sets the time, for deadlines; without it, none passes.
    pub fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// Ends a sequence and frees its pages at once. Unknown ids have ended already.
    pub fn cancel(&mut self, id: SequenceId) {
        self.schedule.end_waiting(|waiting| waiting.id == id);
        if let Some(index) = self.schedule.running().iter().position(|running| running.id == id) {
            self.end(index);
        }
    }

    /// Moves every sequence on, by one token or several. A sequence that fails ends alone; the others' results are in
    /// the same list.
    pub fn step(&mut self) -> Vec<Result<Event, StepError>> {
        let mut results = Vec::new();
        self.end_overdue(&mut results);
        self.admit(&mut results);
        self.load();
        self.draft_ahead();
        let mut plan = std::mem::take(&mut self.plan);
        self.plan_within_memory(&mut plan, &mut results);
        if !plan.slices.is_empty() {
            self.ask_for_masks(&plan);
            let outcome = self.run(&plan);
            let masks = self.masks(&plan);
            match outcome {
                Ok(()) => self.sample(&plan, masks, &mut results),
                Err(error) => self.fail(&plan, error, &mut results),
            }
        }
        self.plan = plan;
        self.cache.maintain(&mut *self.runner);
        if let Some(model) = &mut self.draft_model {
            model.maintain();
        }
        if self.is_idle() {
            self.queue_writes();
        }
        results
    }

    /// Rows that the last step computed: of prompts, of generated tokens and of draft tokens. 0 after `step_took`.
    pub fn step_rows(&self) -> usize {
        self.plan.slices.iter().map(|slice| slice.tokens.len() + slice.drafts.len()).sum()
    }

    /// Records how long the last step took. It decides how many rows the next ones have and whether pages are loaded or
    /// computed, and with one KV format never which tokens come.
    pub fn step_took(&mut self, took: Duration) {
        // Time of other engines says nothing about this one's work.
        let took = took.saturating_sub(self.runner.take_device_wait());
        // That of the draft model is counted apart.
        let took = took.saturating_sub(self.draft_model.as_mut().map_or(Duration::ZERO, DraftModel::take_time));
        if !self.has_loaded {
            self.note_step_time(took);
        }
        self.plan.slices.clear();
    }

    fn note_step_time(&mut self, took: Duration) {
        self.schedule.observe(&self.plan, took);
        if let Some(rows) = self.plan.decode_rows() {
            self.row_cost.observe(rows, took);
        }
        if let (Some(model), Some(seconds)) = (&mut self.draft_model, self.row_cost.single_seconds()) {
            model.set_large_step(seconds);
        }
        if let Some(row) = self.schedule.row_time() {
            self.cache.set_token_time(row);
        }
    }

    fn end_overdue(&mut self, results: &mut Vec<Result<Event, StepError>>) {
        let now = self.now;
        let is_overdue = |sequence: &Sequence| sequence.deadline.is_some_and(|deadline| deadline < now);
        let overdue = self.schedule.end_waiting(is_overdue);
        results.extend(overdue.into_iter().map(|sequence| Err(StepError::DeadlinePassed { sequence })));
        while let Some(index) = self.schedule.running().iter().position(is_overdue) {
            results.push(Err(StepError::DeadlinePassed { sequence: self.schedule.running()[index].id }));
            self.end(index);
        }
    }

    /// Loads pages for sequences that wait for some from disk. What cannot be loaded is computed.
    fn load(&mut self) {
        self.has_loaded = self.schedule.running().iter().any(Sequence::is_loading);
        let others = self.schedule.running().iter().any(Sequence::is_generating);
        let mut left = if others { LOADED_BESIDE_OTHERS } else { usize::MAX };
        let mut failed = Vec::new();
        for (index, sequence) in self.schedule.running_mut().iter_mut().enumerate() {
            if !sequence.is_loading() {
                continue;
            }
            while left > 0
                && let Some(hash) = sequence.on_disk.pop_front()
            {
                left -= 1;
                if !self.cache.load(sequence.namespaces.first(), &mut sequence.table, hash, &mut *self.runner) {
                    sequence.on_disk.clear();
                    failed.push(index);
                    break;
                }
                let loaded = sequence.table.capacity_tokens() - sequence.computed;
                sequence.computed += loaded;
                if let Some(report) = &mut sequence.prefix {
                    report.cached_tokens += loaded;
                    report.loaded_tokens += loaded;
                }
            }
            if !sequence.is_loading() {
                let computed = &sequence.tokens[..sequence.computed];
                self.cache.insert_prefix(sequence.namespaces, computed, &mut sequence.table, &mut *self.runner);
            }
        }
        // Their recurrent state, if they have one, is that behind the pages that could not be loaded.
        if self.cache.has_states() {
            failed.into_iter().rev().for_each(|index| self.preempt(index));
        }
    }

    /// Plans a step for which every sequence has the pages it needs, preempting sequences where memory is short.
    fn plan_within_memory(&mut self, plan: &mut Plan, results: &mut Vec<Result<Event, StepError>>) {
        let limits = self.step_limits();
        loop {
            self.schedule.plan(limits, plan);
            let fits = plan.slices.iter().all(|slice| {
                let Sequence { namespaces, table, .. } = &mut self.schedule.running_mut()[slice.running];
                let tokens = slice.tokens.end + slice.drafts.len();
                self.cache.extend(namespaces.first(), table, tokens, &mut *self.runner).is_ok()
            });
            if fits {
                return;
            }
            if self.trim_sequences() > 0 || self.interrupt_observation() {
                continue;
            }
            match self.schedule.preemption_victim() {
                Some(index) if self.schedule.running().len() > 1 => self.preempt(index),
                // What fits alone was admitted, so this is memory that is lost to the seams between formats.
                Some(index) => {
                    results.push(Err(StepError::OutOfMemory { sequence: self.schedule.running()[index].id }));
                    self.end(index);
                }
                None => return,
            }
        }
    }

    fn step_limits(&self) -> StepLimits {
        StepLimits {
            now: self.now,
            rows_max: self.runner.limits().rows_max,
            logit_rows_max: self.runner.limits().logit_rows_max,
            slowdown_max: self.options.slowdown_max,
            row_cost: self.row_cost.get(),
            drafts_stay_in_page: !self.options.kv.tiers.is_uniform() || self.cache.has_states(),
            drafts_max: self.runner.limits().drafts_max,
        }
    }

    /// Gives back what layers with a window no longer need of the running sequences. Returns how many pages became smaller.
    fn trim_sequences(&mut self) -> usize {
        if !self.cache.has_windows() {
            return 0;
        }
        let running = self.schedule.running_mut().iter_mut();
        running.map(|one| self.cache.trim_sequence(&mut one.table, one.computed, &mut *self.runner)).sum()
    }

    /// Preempts a sequence: its pages go to the prefix cache, and it resumes later from what it has generated so far.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.schedule.remove_running(index);
        self.release(&mut sequence);
        sequence.computed = 0;
        sequence.on_disk.clear();
        self.schedule.requeue(sequence);
        self.preemptions += 1;
        self.row_cost.restart();
    }

    fn release(&mut self, sequence: &mut Sequence) {
        if let Some(model) = &mut self.draft_model {
            model.release(sequence);
        }
        let namespaces = sequence.prefix_use.enabled.then_some(sequence.namespaces);
        let table = std::mem::take(&mut sequence.table);
        self.release_table(namespaces, &sequence.tokens[..sequence.computed], table);
    }

    /// Releases the pages and the state of a sequence, inserting pages into the prefix tree if namespaces are given.
    fn release_table(&mut self, namespaces: Option<TextNamespaces>, tokens: &[TokenId], table: PageTable) {
        // Where that holds the keys and values, they do not count any more.
        let emptied = table.state().filter(|_| !self.runner.limits().caches_prefixes);
        self.cache.release(namespaces, tokens, table, &mut *self.runner);
        if let Some(slot) = emptied {
            self.runner.discard_state(slot);
        }
    }

    /// Runs the forward pass of a plan. Logits are those of the slices that sample, in their order: of the last token and of
    /// the draft tokens behind it.
    fn run(&mut self, plan: &Plan) -> Result<(), RunnerError> {
        self.batch.clear();
        for slice in &plan.slices {
            let running = &self.schedule.running()[slice.running];
            let drafts = &plan.drafts[slice.drafts.clone()];
            let tokens = running.tokens[slice.tokens.clone()].iter().chain(drafts).copied();
            let logit_rows = if slice.samples { 1 + drafts.len() } else { 0 };
            let pages = self.cache.locations(&running.table);
            self.batch.push(slice.tokens.start, tokens, logit_rows, pages, running.rows_adapter());
            if slice.is_fast {
                self.batch.set_fast();
            }
            if let Some(slot) = running.table.state() {
                self.batch.set_state(slot, drafts.len());
            }
            if self.runner.limits().chooses_tokens {
                self.batch.set_choice(running.choice());
            }
        }
        self.runner.submit(&self.batch)?;
        self.runner.wait()
    }

    /// Ends the sequences of a step that failed. Pages that it did not write stay cached. If the device is lost, all other
    /// sequences end as well, and nothing is saved any more: what its pages hold is unknown.
    fn fail(&mut self, plan: &Plan, error: RunnerError, results: &mut Vec<Result<Event, StepError>>) {
        let mut failed: Vec<usize> = plan.slices.iter().map(|slice| slice.running).collect();
        if let RunnerError::DeviceLost(reason) = &error {
            self.device_lost = Some(reason.clone());
            self.cache.stop_saving();
            failed = (0..self.schedule.running().len()).collect();
            let waiting = self.schedule.end_waiting(|_| true);
            results
                .extend(waiting.into_iter().map(|sequence| Err(StepError::Runner { sequence, error: error.clone() })));
        }
        for slice in &plan.slices {
            let sequence = &mut self.schedule.running_mut()[slice.running];
            sequence.computed = sequence.computed / PAGE_TOKENS * PAGE_TOKENS;
        }
        // From the back, so that indices stay true.
        failed.sort_unstable();
        for index in failed.into_iter().rev() {
            let sequence = self.schedule.running()[index].id;
            results.push(Err(StepError::Runner { sequence, error: error.clone() }));
            self.end(index);
        }
    }

    /// Requests token masks, which are computed while the model runs.
    fn ask_for_masks(&mut self, plan: &Plan) {
        let Some(thread) = &mut self.mask_thread else { return };
        for (index, slice) in plan.slices.iter().enumerate().filter(|(_, slice)| slice.samples) {
            if let Some(constraint) = self.schedule.running_mut()[slice.running].constraint.take() {
                thread.ask(index, constraint, &plan.drafts[slice.drafts.clone()]);
            }
        }
    }

    /// Collects the token masks of constrained slices, and returns constraints to their sequences.
    fn masks(&mut self, plan: &Plan) -> Vec<Option<Result<Masks, ConstraintError>>> {
        let mut masks = vec![None; plan.slices.len()];
        for answer in self.mask_thread.iter_mut().flat_map(MaskThread::answers) {
            self.schedule.running_mut()[plan.slices[answer.slice].running].constraint = answer.constraint;
            masks[answer.slice] = Some(answer.masks);
        }
        masks
    }

    fn sample(
        &mut self,
        plan: &Plan,
        masks: Vec<Option<Result<Masks, ConstraintError>>>,
        results: &mut Vec<Result<Event, StepError>>,
    ) {
        let mut ended = Vec::new();
        let (mut first, mut first_row) = (0, 0);
        for (slice, masks) in plan.slices.iter().zip(masks) {
            let sequence = &mut self.schedule.running_mut()[slice.running];
            sequence.computed = slice.tokens.end;
            let before = results.len();
            if slice.samples {
                let (runner, draft) = (&mut self.runner, &plan.drafts[slice.drafts.clone()]);
                let last_row = first_row + slice.tokens.len() - 1;
                let outcome = match masks.transpose() {
                    Ok(masks) => sequence.advance(
                        draft,
                        |sampler, row| {
                            let allowed = masks.as_ref().map(|masks| &masks[row][..]);
                            sampler.sample_row(&mut **runner, (first + row, last_row + row), allowed)
                        },
                        results,
                    ),
                    Err(error) => {
                        results.push(Err(StepError::Constraint { sequence: sequence.id, error }));
                        Outcome::Ended
                    }
                };
                if outcome == Outcome::Ended {
                    ended.push(slice.running);
                }
                first += draft.len() + 1;
            }
            if self.options.keeps_states {
                self.keep_hidden_states(slice, first_row, &mut results[before..]);
            }
            first_row += slice.tokens.len() + slice.drafts.len();
            self.schedule.serve(slice.running, slice.tokens.len(), results.len() - before);
            let sequence = &mut self.schedule.running_mut()[slice.running];
            if sequence.prefix_use.enabled {
                let computed = &sequence.tokens[..sequence.computed];
                self.cache.insert_prefix(sequence.namespaces, computed, &mut sequence.table, &mut *self.runner);
                self.take_snapshot_if_due(slice.running);
            }
            let sequence = &mut self.schedule.running_mut()[slice.running];
            self.cache.demote_by_age(&mut sequence.table, sequence.computed, &mut *self.runner);
        }
        // From the back, so that indices stay true.
        ended.sort_unstable();
        ended.into_iter().rev().for_each(|index| self.end(index));
    }

    /// Takes a snapshot of a sequence's recurrent state, if it has one, where another may go on from.
    fn take_snapshot_if_due(&mut self, index: usize) {
        let sequence = &mut self.schedule.running_mut()[index];
        if !self.cache.has_states() || !sequence.is_snapshot_due() {
            return;
        }
        let (namespaces, computed) = (sequence.namespaces, &sequence.tokens[..sequence.computed]);
        let before = sequence.latest_snapshot.take();
        let taken = self.cache.take_snapshot(namespaces, computed, &sequence.table, before, &mut *self.runner);
        // Those of the prompt stay.
        sequence.latest_snapshot = taken.filter(|_| sequence.is_generating());
    }

    fn end(&mut self, index: usize) {
        let mut sequence = self.schedule.remove_running(index);
        self.release(&mut sequence);
        self.row_cost.restart();
    }

    /// Returns where the prefixes of a tenant are cached: apart from those of other models, runners, adapters, KV formats and,
    /// unless they share, tenants.
    fn namespace(&self, tenant: &Tenant, adapter: Option<AdapterId>) -> Namespace {
        // On disk these names outlive the process: they are spelled out, not taken from names in the code.
        let rotation = match self.options.kv.rotation {
            Rotation::None => "none",
            Rotation::Hadamard => "hadamard",
        };
        let formats = format!("{} {rotation}", self.options.kv.tiers);
        let tenant = if self.options.shares_prefixes { "" } else { tenant.name() };
        let numerics = self.runner.limits().numerics.as_bytes();
        let mut parts = vec![&self.options.fingerprint[..], formats.as_bytes(), tenant.as_bytes()];
        // Names without them stay what they were.
        if !numerics.is_empty() {
            parts.extend([b"runner".as_slice(), numerics]);
        }
        if self.fast_rows_min.is_some() {
            parts.push(b"fast prefill");
        }
        if let Some(AdapterId(digest)) = &adapter {
            parts.extend([b"adapter".as_slice(), digest]);
        }
        Namespace::of(&parts)
    }

    /// Returns where the pages of a request are cached: with those of the model alone as long as its adapter changes nothing of
    /// what they hold.
    fn namespaces(&self, tenant: &Tenant, adapter: Option<&HeldAdapter>, prompt: &[TokenId]) -> TextNamespaces {
        // Hidden states, which are kept beside keys and values, always differ.
        let is_apart = |adapter: &&HeldAdapter| adapter.changes_kv || self.options.keeps_states;
        let Some(adapter) = adapter.filter(is_apart) else {
            return self.namespace(tenant, None).into();
        };
        let start = adapter.start(prompt);
        if start == 0 {
            return self.namespace(tenant, Some(adapter.id)).into();
        }
        // The page in which it begins is its own; what that holds depends on where it begins.
        let parts = [b"adapter".as_slice(), &adapter.id.0, &(start as u64).to_le_bytes()];
        TextNamespaces::branching(self.namespace(tenant, None), &prompt[..start], &parts)
    }
}

/// What is cached outlives the process, where there is a disk tier.
impl Drop for Core {
    fn drop(&mut self) {
        self.save(usize::MAX);
    }
}
