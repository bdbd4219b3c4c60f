//! The engine: sequences are submitted, `step` moves all of them on by schedule, forward pass and sampling.

use std::time::Duration;

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{Batch, SequenceRows};
use ruvllm_kv::{KvCache, PageTable};
use ruvllm_model::{Model, RunState};

use crate::schedule::{Plan, Schedule, Waiting};
use crate::sequence::{Outcome, Running};
use crate::speculation::RowCost;
use crate::{Event, Request, SequenceId, StepError, SubmitError};

/// Limits of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreOptions {
    /// Rows of a forward pass at most: how much of a prompt is taken at once.
    pub batch_rows: usize,
    /// Sequences that run together at most.
    pub sequences_max: usize,
    /// Requests that wait at most.
    pub queue_max: usize,
    /// Pages of KV memory.
    pub kv_pages: u32,
}

/// A model with its threads and KV memory, and the sequences in flight.
#[derive(Debug)]
pub struct Core {
    model: Model,
    pool: Pool,
    cache: KvCache,
    state: RunState,
    schedule: Schedule,
    options: CoreOptions,
    next_id: u64,
    row_cost: RowCost,
    /// Rows of the last step, if none was of a prompt.
    decode_rows: Option<usize>,
    // Buffers of a step, kept to avoid allocating.
    plan: Plan,
    step_tokens: Vec<u32>,
    logit_rows: Vec<usize>,
}

impl Core {
    pub fn new(model: Model, pool: Pool, options: CoreOptions) -> Self {
        let rows = options.batch_rows.max(options.sequences_max);
        let cache = KvCache::new(&pool, model.config().kv_shape(), options.kv_pages);
        let state = model.run_state(&pool, cache.buffer(), rows, rows);
        Self {
            model,
            pool,
            cache,
            state,
            schedule: Schedule::default(),
            options,
            next_id: 0,
            row_cost: RowCost::default(),
            decode_rows: None,
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

    pub fn free_pages(&self) -> usize {
        self.cache.free_pages()
    }

    pub fn is_idle(&self) -> bool {
        self.schedule.running.is_empty() && self.schedule.waiting.is_empty()
    }

    /// Checks a request and queues it.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId, SubmitError> {
        let length_max = self.check(&request)?;
        if self.schedule.waiting.len() >= self.options.queue_max {
            return Err(SubmitError::QueueFull(self.options.queue_max));
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.schedule.waiting.push_back(Waiting { id, request, length_max });
        Ok(id)
    }

    /// The sequence's length at its end, if the request can be served at all.
    fn check(&self, request: &Request) -> Result<usize, SubmitError> {
        let (vocabulary, context) = (self.model.config().vocabulary, self.model.context());
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
        let (needed, pages) = (KvCache::pages_for(length_max), self.cache.pages());
        if needed > pages {
            return Err(SubmitError::TooLargeForCache { needed, pages });
        }
        request.sampling.check(vocabulary)?;
        Ok(length_max)
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
        self.admit();
        let mut plan = std::mem::take(&mut self.plan);
        self.schedule.plan(self.state.rows_max(), self.row_cost.get(), &mut plan);
        self.decode_rows = plan.decode_rows();
        let mut results = Vec::new();
        if !plan.slices.is_empty() {
            self.run(&plan);
            self.sample(&plan, &mut results);
        }
        self.plan = plan;
        results
    }

    /// Tells how long the last step took. It decides how many guesses are worth their rows, never which tokens come.
    pub fn step_took(&mut self, took: Duration) {
        if let Some(rows) = self.decode_rows.take() {
            self.row_cost.observe(rows, took);
        }
    }

    /// Starts waiting sequences, in order, while there is room for all that they may generate.
    fn admit(&mut self) {
        while self.schedule.running.len() < self.options.sequences_max {
            let Some(first) = self.schedule.waiting.front() else { return };
            let mut pages = PageTable::default();
            if self.cache.reserve(&mut pages, first.length_max).is_err() {
                return;
            }
            let Some(Waiting { id, request, length_max }) = self.schedule.waiting.pop_front() else { return };
            self.schedule.running.push(Running::new(id, request, length_max, pages));
            self.row_cost.restart();
        }
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
            sequences.push(SequenceRows { rows, start: slice.tokens.start, pages: running.pages.pages() });
        }
        let batch = Batch::new(sequences, self.cache.buffer()).expect("pages were reserved for every sequence");
        let (state, kv) = (&mut self.state, self.cache.buffer());
        self.model.forward(&mut self.pool, state, kv, &batch, &self.step_tokens, &self.logit_rows);
    }

    fn sample(&mut self, plan: &Plan, results: &mut Vec<Result<Event, StepError>>) {
        let mut ended = Vec::new();
        let mut first = 0;
        for slice in &plan.slices {
            let running = &mut self.schedule.running[slice.running];
            running.computed = slice.tokens.end;
            if !slice.samples {
                continue;
            }
            let (state, draft) = (&mut self.state, &plan.drafts[slice.drafts.clone()]);
            let outcome = running.advance(draft, |sampler, row| sampler.sample(state.logits(first + row)), results);
            if outcome == Outcome::Ended {
                ended.push(slice.running);
            }
            first += draft.len() + 1;
        }
        // From the back, so that indices stay true.
        ended.sort_unstable();
        ended.into_iter().rev().for_each(|index| self.end(index));
    }

    fn end(&mut self, index: usize) {
        let running = self.schedule.running.remove(index);
        self.cache.release(running.pages);
        self.row_cost.restart();
        self.decode_rows = None;
    }

    /// Runs `tokens` as one text of its own and hands the logits after each position in `wanted` to `visit`.
    /// For measurements such as perplexity; sequences in flight are not touched.
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        wanted: std::ops::Range<usize>,
        mut visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), SubmitError> {
        let (vocabulary, context) = (self.model.config().vocabulary, self.model.context());
        if tokens.len() > context {
            return Err(SubmitError::PromptTooLong { prompt: tokens.len(), context });
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(SubmitError::NoSuchToken { token: *token, vocabulary });
        }
        let mut pages = PageTable::default();
        self.cache
            .reserve(&mut pages, tokens.len())
            .map_err(|short| SubmitError::TooLargeForCache { needed: short.needed, pages: short.free })?;
        for (chunk_index, chunk) in tokens.chunks(self.state.rows_max()).enumerate() {
            let start = chunk_index * self.state.rows_max();
            let rows = SequenceRows { rows: 0..chunk.len(), start, pages: pages.pages() };
            let batch = Batch::new(vec![rows], self.cache.buffer()).expect("pages were reserved");
            let logit_rows: Vec<usize> = (0..chunk.len()).filter(|row| wanted.contains(&(start + row))).collect();
            let (state, kv) = (&mut self.state, self.cache.buffer());
            self.model.forward(&mut self.pool, state, kv, &batch, chunk, &logit_rows);
            for (i, row) in logit_rows.iter().enumerate() {
                visit(start + row, self.state.logits(i));
            }
        }
        self.cache.release(pages);
        Ok(())
    }
}
