//! The engine: sequences are submitted, `step` moves all of them on by schedule, forward pass and sampling.

mod admission;
mod evaluate;
mod keep_states;
#[cfg(test)]
mod simulation;

use std::time::Duration;

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{Batch, PageFormat, Rotation, SequenceRows};
use ruvllm_kv::{CacheStats, KvCache, KvOptions, LookupStats, Namespace, Quota, Tiers};
use ruvllm_model::{Model, RunState};

use crate::constraint::{MaskThread, Masks};
use crate::schedule::{Plan, Schedule, StepLimits};
use crate::sequence::{Outcome, Sequence};
use crate::speculation::RowCost;
use crate::tenants::Tenants;
use crate::{ConstraintError, Event, SequenceId, StepError, Tenant};

/// Pages that are loaded from disk in a step while others generate. Each takes a fraction of a millisecond.
const LOADED_BESIDE_OTHERS: usize = 4;

/// Limits of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreOptions {
    /// Rows of a forward pass at most: how much of a prompt is taken at once.
    pub batch_rows: usize,
    /// Sequences that run together at most.
    pub sequences_max: usize,
    /// Requests that wait at most, and the tokens of their prompts together.
    pub queue_max: usize,
    pub queue_tokens_max: usize,
    /// How much longer the others may wait for their next tokens while a prompt is computed.
    pub slowdown_max: f64,
    pub kv: KvOptions,
    /// Tells this model from others in the prefix cache, on disk too.
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
            batch_rows: 128,
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

/// A model with its threads and KV memory, and the sequences in flight.
#[derive(Debug)]
pub struct Core {
    model: Model,
    pool: Pool,
    cache: KvCache,
    state: RunState,
    schedule: Schedule,
    tenants: Tenants,
    options: CoreOptions,
    next_id: u64,
    now: Duration,
    row_cost: RowCost,
    /// Whether the last step read from disk: then its duration tells nothing of computing.
    has_loaded: bool,
    /// Times that a sequence had to make room for others.
    pauses: u64,
    /// Runs since the first sequence with a constraint.
    mask_thread: Option<MaskThread>,
    // Buffers of a step, kept to avoid allocating.
    plan: Plan,
    step_tokens: Vec<u32>,
    logit_rows: Vec<usize>,
}

impl Core {
    pub fn new(model: Model, pool: Pool, mut options: CoreOptions) -> Self {
        let rows = options.batch_rows.max(options.sequences_max);
        if options.keeps_states {
            options.kv.note_bytes = Self::state_bytes(model.config());
        }
        let mut cache = KvCache::new(&pool, model.config().kv_shape(), &options.kv);
        let quotas = if options.shares_prefixes { &[][..] } else { &options.quotas };
        let tenants = Tenants::new(quotas, &mut cache);
        let state = model.run_state(&pool, cache.memory(), rows, rows);
        Self {
            model,
            pool,
            cache,
            state,
            schedule: Schedule::default(),
            tenants,
            options,
            next_id: 0,
            now: Duration::ZERO,
            row_cost: RowCost::default(),
            has_loaded: false,
            pauses: 0,
            mask_thread: None,
            plan: Plan::default(),
            step_tokens: Vec::with_capacity(rows),
            logit_rows: Vec::with_capacity(rows),
        }
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    pub fn is_idle(&self) -> bool {
        self.schedule.running.is_empty() && self.schedule.waiting.is_empty()
    }

    pub fn running(&self) -> usize {
        self.schedule.running.len()
    }

    pub fn waiting(&self) -> usize {
        self.schedule.waiting.len()
    }

    /// Times that a sequence had to make room for others.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// All tenants that ever asked for something, with their look-ups of prefixes.
    pub fn tenants(&self) -> impl Iterator<Item = (&Tenant, LookupStats)> {
        self.tenants.known().map(|(tenant, namespace)| (tenant, self.cache.lookups_of(namespace)))
    }

    /// Keeps the cached beginning of `tokens` in memory until it is unpinned; gives how many tokens that are.
    pub fn pin(&mut self, tenant: &Tenant, tokens: &[u32]) -> usize {
        self.cache.pin(self.namespace(tenant), tokens)
    }

    pub fn unpin(&mut self, tenant: &Tenant, tokens: &[u32]) {
        self.cache.unpin(self.namespace(tenant), tokens);
    }

    /// Hands cached pages to the disk, where there is a disk tier, as far as it takes them without making anybody wait; tells how
    /// many are left. For those who have nothing else to do; what is dropped saves by itself.
    pub fn hand_over(&mut self) -> usize {
        self.cache.hand_over(usize::MAX)
    }

    /// Saves up to so many cached pages to disk, and waits until they are there; tells how many are left. For those who must
    /// know.
    pub fn save(&mut self, pages: usize) -> usize {
        self.cache.save(pages)
    }

    /// Changes the format of cold KV pages and the basis of all, before anything is cached.
    pub fn set_cold(&mut self, cold: PageFormat, rotation: Rotation) {
        (self.options.kv.tiers.cold, self.options.kv.rotation) = (cold, rotation);
        self.cache.set_cold(cold, rotation);
    }

    /// Changes the memory for keys and values, up to what it was at first. Cached prefixes go, and sequences pause, until it is
    /// enough; one may go on all the same. Tells whether no more is held.
    pub fn set_kv_budget(&mut self, bytes: usize) -> bool {
        let mut is_kept = self.cache.set_budget(bytes);
        while !is_kept && self.schedule.running.len() > 1 {
            let Some(index) = self.schedule.first_to_pause() else { break };
            self.pause(index);
            is_kept = self.cache.set_budget(bytes);
        }
        is_kept
    }

    /// Lets other engines have the cores until the next step.
    pub fn rest(&mut self) {
        self.pool.rest();
    }

    /// Tells the time, for deadlines; without, none passes.
    pub fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// Ends a sequence and frees its pages at once. Unknown ids have ended already.
    pub fn cancel(&mut self, id: SequenceId) {
        self.schedule.waiting.retain(|waiting| waiting.id != id);
        if let Some(index) = self.schedule.running.iter().position(|running| running.id == id) {
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
        let mut plan = std::mem::take(&mut self.plan);
        self.plan_within_memory(&mut plan, &mut results);
        if !plan.slices.is_empty() {
            self.ask_for_masks(&plan);
            self.run(&plan);
            let masks = self.masks(&plan);
            self.sample(&plan, masks, &mut results);
        }
        self.plan = plan;
        self.cache.maintain(&mut self.pool);
        if self.is_idle() {
            self.cache.hand_over(usize::MAX);
        }
        results
    }

    /// Rows that the last step computed: of prompts, of generated tokens and of guesses. 0 once its duration was told.
    pub fn step_rows(&self) -> usize {
        self.plan.slices.iter().map(|slice| slice.tokens.len() + slice.drafts.len()).sum()
    }

    /// Tells how long the last step took. It decides how many rows the next ones have and whether pages are loaded or
    /// computed, and with one KV format never which tokens come.
    pub fn step_took(&mut self, took: Duration) {
        // Time of other engines tells nothing of this one's work.
        let took = took.saturating_sub(self.pool.take_waited_for_cores());
        if !self.has_loaded {
            self.observe(took);
        }
        self.plan.slices.clear();
    }

    fn observe(&mut self, took: Duration) {
        if !self.plan.is_stretched {
            self.schedule.pace.observe(self.plan.generating(), self.plan.prompt_rows(), took);
        }
        if let Some(rows) = self.plan.decode_rows() {
            self.row_cost.observe(rows, took);
        }
        if let Some(row) = self.schedule.pace.row_time() {
            self.cache.set_token_time(row);
        }
    }

    fn end_overdue(&mut self, results: &mut Vec<Result<Event, StepError>>) {
        let now = self.now;
        let is_overdue = |sequence: &Sequence| sequence.deadline.is_some_and(|deadline| deadline < now);
        self.schedule.waiting.retain(|sequence| {
            if is_overdue(sequence) {
                results.push(Err(StepError::DeadlinePassed { sequence: sequence.id }));
            }
            !is_overdue(sequence)
        });
        while let Some(index) = self.schedule.running.iter().position(is_overdue) {
            results.push(Err(StepError::DeadlinePassed { sequence: self.schedule.running[index].id }));
            self.end(index);
        }
    }

    /// Loads pages for sequences that wait for some from disk. What cannot be loaded is computed.
    fn load(&mut self) {
        self.has_loaded = self.schedule.running.iter().any(Sequence::is_loading);
        let others = self.schedule.running.iter().any(Sequence::is_generating);
        let mut left = if others { LOADED_BESIDE_OTHERS } else { usize::MAX };
        for sequence in self.schedule.running.iter_mut().filter(|sequence| sequence.is_loading()) {
            while left > 0
                && let Some(hash) = sequence.on_disk.pop_front()
            {
                left -= 1;
                if !self.cache.load(sequence.namespace, &mut sequence.table, hash) {
                    sequence.on_disk.clear();
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
                self.cache.keep(sequence.namespace, &sequence.tokens[..sequence.computed], &mut sequence.table);
            }
        }
    }

    /// Plans a step for which every sequence has the pages it needs. Where memory is short, sequences pause for others.
    fn plan_within_memory(&mut self, plan: &mut Plan, results: &mut Vec<Result<Event, StepError>>) {
        let limits = StepLimits {
            now: self.now,
            rows_max: self.state.rows_max(),
            slowdown_max: self.options.slowdown_max,
            row_cost: self.row_cost.get(),
            pages_cool: !self.options.kv.tiers.is_uniform(),
        };
        loop {
            self.schedule.plan(limits, plan);
            let fits = plan.slices.iter().all(|slice| {
                let Sequence { namespace, table, .. } = &mut self.schedule.running[slice.running];
                self.cache.extend(*namespace, table, slice.tokens.end + slice.drafts.len()).is_ok()
            });
            if fits {
                return;
            }
            match self.schedule.first_to_pause() {
                Some(index) if self.schedule.running.len() > 1 => self.pause(index),
                // What fits alone was admitted, so this is memory that is lost to the seams between formats.
                Some(index) => {
                    results.push(Err(StepError::OutOfMemory { sequence: self.schedule.running[index].id }));
                    self.end(index);
                }
                None => return,
            }
        }
    }

    /// Takes a sequence's pages; it goes on later from what it has generated so far.
    fn pause(&mut self, index: usize) {
        let mut sequence = self.schedule.running.remove(index);
        self.give_back(&mut sequence);
        sequence.computed = 0;
        sequence.on_disk.clear();
        self.schedule.waiting.push(sequence);
        self.pauses += 1;
        self.row_cost.restart();
    }

    fn give_back(&mut self, sequence: &mut Sequence) {
        let namespace = sequence.prefix_use.enabled.then_some(sequence.namespace);
        let table = std::mem::take(&mut sequence.table);
        self.cache.end(namespace, &sequence.tokens[..sequence.computed], table);
    }

    /// The forward pass of a plan. Logits are those of the slices that sample, in their order: of the last token and of
    /// the guesses behind it.
    fn run(&mut self, plan: &Plan) {
        self.step_tokens.clear();
        self.logit_rows.clear();
        let mut sequences = Vec::with_capacity(plan.slices.len());
        for slice in &plan.slices {
            let running = &self.schedule.running[slice.running];
            let first = self.step_tokens.len();
            self.step_tokens.extend(&running.tokens[slice.tokens.clone()]);
            if slice.samples {
                let last = self.step_tokens.len() - 1;
                self.logit_rows.extend(last..=last + slice.drafts.len());
            }
            self.step_tokens.extend(&plan.drafts[slice.drafts.clone()]);
            let rows = first..self.step_tokens.len();
            sequences.push(SequenceRows { rows, start: slice.tokens.start, pages: running.table.pages() });
        }
        let batch =
            Batch::new(sequences, self.cache.memory()).expect("every sequence has pages of its own to write to");
        let (state, kv) = (&mut self.state, self.cache.memory());
        self.model.forward(&mut self.pool, state, kv, &batch, &self.step_tokens, &self.logit_rows);
    }

    /// Has constraints asked what may come, while the logits are computed.
    fn ask_for_masks(&mut self, plan: &Plan) {
        let Some(thread) = &mut self.mask_thread else { return };
        for (index, slice) in plan.slices.iter().enumerate().filter(|(_, slice)| slice.samples) {
            if let Some(constraint) = self.schedule.running[slice.running].constraint.take() {
                thread.ask(index, constraint, &plan.drafts[slice.drafts.clone()]);
            }
        }
    }

    /// What may come, for each slice that is constrained. Constraints are with their sequences again.
    fn masks(&mut self, plan: &Plan) -> Vec<Option<Result<Masks, ConstraintError>>> {
        let mut masks = vec![None; plan.slices.len()];
        for answer in self.mask_thread.iter_mut().flat_map(MaskThread::answers) {
            self.schedule.running[plan.slices[answer.slice].running].constraint = answer.constraint;
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
            let sequence = &mut self.schedule.running[slice.running];
            sequence.computed = slice.tokens.end;
            let before = results.len();
            if slice.samples {
                let (state, draft) = (&mut self.state, &plan.drafts[slice.drafts.clone()]);
                let outcome = match masks.transpose() {
                    Ok(masks) => sequence.advance(
                        draft,
                        |sampler, row| {
                            let allowed = masks.as_ref().map(|masks| &masks[row][..]);
                            sampler.sample(state.logits(first + row), allowed)
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
                self.keep_states(slice, first_row, &mut results[before..]);
            }
            first_row += slice.tokens.len() + slice.drafts.len();
            let sequence = &mut self.schedule.running[slice.running];
            self.schedule.shares.serve(&sequence.tenant, slice.tokens.len(), results.len() - before);
            if sequence.prefix_use.enabled {
                self.cache.keep(sequence.namespace, &sequence.tokens[..sequence.computed], &mut sequence.table);
            }
            self.cache.age(&mut self.pool, &mut sequence.table, sequence.computed);
        }
        // From the back, so that indices stay true.
        ended.sort_unstable();
        ended.into_iter().rev().for_each(|index| self.end(index));
    }

    fn end(&mut self, index: usize) {
        let mut sequence = self.schedule.running.remove(index);
        self.give_back(&mut sequence);
        self.row_cost.restart();
    }

    /// Where the prefixes of a tenant are cached: apart from those of other models, KV formats and, unless they share,
    /// tenants.
    fn namespace(&self, tenant: &Tenant) -> Namespace {
        // On disk these names outlive the process: they are spelled out, not taken from names in the code.
        let rotation = match self.options.kv.rotation {
            Rotation::None => "none",
            Rotation::Hadamard => "hadamard",
        };
        let formats = format!("{} {rotation}", self.options.kv.tiers);
        let tenant = if self.options.shares_prefixes { "" } else { tenant.name() };
        Namespace::of(&[&self.options.fingerprint, formats.as_bytes(), tenant.as_bytes()])
    }
}
