//! A model on the threads of this machine's CPU.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{HostPages, RowKernels};
use ruvllm_runner::{
    AdapterId, Batch, BatchError, Candidate, CandidateScan, Conversion, NotFinite, PageBytes, PassTimes, Rotation,
    Runner, RunnerError, RunnerLimits, StateSlot,
};

use crate::adapters::{AdapterBuffers, AdapterTargets, ResidentAdapters};
use crate::{Config, Model, RowLimits, RunState};

/// Runs batches when they are submitted: the thread that submits is one of those that compute.
#[derive(Debug)]
pub struct CpuRunner {
    /// Shared, so that something beside the engine can read the weights.
    model: Arc<Model>,
    /// Shared by runners that take turns on one thread.
    pool: Arc<Mutex<Pool>>,
    pages: HostPages,
    state: RunState,
    limits: RunnerLimits,
    scan: CandidateScan,
    run_time: Duration,
    adapters: Arc<ResidentAdapters>,
    row_kernels: Arc<RowKernelSlot>,
}

/// What computes operations on rows from the next batch on; replaced between batches.
#[derive(Debug, Default)]
pub struct RowKernelSlot(Mutex<Option<Arc<dyn RowKernels>>>);

impl RowKernelSlot {
    pub fn set(&self, kernels: Option<Arc<dyn RowKernels>>) {
        *lock(&self.0) = kernels;
    }

    fn get(&self) -> Option<Arc<dyn RowKernels>> {
        lock(&self.0).clone()
    }
}

impl CpuRunner {
    /// A runner for batches of up to `rows_max` rows.
    pub fn new(model: Arc<Model>, pool: Pool, rows_max: usize) -> Self {
        Self::with_rows(model, pool, RowLimits::exact(rows_max))
    }

    /// A runner for batches of such rows. It has no fast ones if the model or the pool's kernels do not allow them.
    pub fn with_rows(model: Arc<Model>, pool: Pool, mut rows: RowLimits) -> Self {
        rows.has_fast &= model.has_fast_rows(&pool);
        Self::on(model, Arc::new(Mutex::new(pool)), rows)
    }

    /// A runner of another model on the threads of this one, by turns.
    pub fn beside(&self, model: Arc<Model>, rows_max: usize) -> Self {
        Self::on(model, Arc::clone(&self.pool), RowLimits::exact(rows_max))
    }

    fn on(model: Arc<Model>, shared: Arc<Mutex<Pool>>, rows: RowLimits) -> Self {
        let pool = lock(&shared);
        let config = model.config();
        let states = config.state_shape();
        let limits = RunnerLimits {
            vocabulary: config.vocabulary,
            context: model.context(),
            hidden: config.hidden,
            kv_shape: config.kv_shape(),
            state_bytes: states.bytes(),
            drafts_max: if states.layers.is_empty() { usize::MAX } else { states.drafts },
            rows_max: rows.all,
            logit_rows_max: rows.logits,
            caches_prefixes: true,
            chooses_tokens: false,
            has_fast_rows: rows.has_fast,
            numerics: config.numerics(model.context()),
        };
        let pages = HostPages::new(&pool, limits.kv_shape, Rotation::None, 0);
        let state = model.run_state(&pool, rows);
        drop(pool);
        let (scan, run_time) = (CandidateScan::default(), Duration::ZERO);
        let (adapters, row_kernels) = (Arc::default(), Arc::default());
        Self { model, pool: shared, pages, state, limits, scan, run_time, adapters, row_kernels }
    }

    /// Returns the adapters that batches may name.
    pub fn adapters(&self) -> &Arc<ResidentAdapters> {
        &self.adapters
    }

    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// Returns how many gates of a row a thread activates at once, if kernels from outside can do that.
    pub fn gated_cols(&self) -> Option<usize> {
        self.model.gated_cols(self.threads())
    }

    /// Returns where kernels from outside are put.
    pub fn row_kernels(&self) -> &Arc<RowKernelSlot> {
        &self.row_kernels
    }

    /// Returns what adapters may change of its model.
    pub fn adapter_targets(&self) -> AdapterTargets {
        self.model.adapter_targets()
    }

    /// Returns what batches with adapters take in addition, from the first one on.
    pub fn adapter_buffers(&self) -> AdapterBuffers {
        self.state.adapter_buffers()
    }

    pub fn threads(&self) -> usize {
        lock(&self.pool).threads()
    }

    /// Refuses what would make the forward pass panic.
    fn check(&self, batch: &Batch) -> Result<(), BatchError> {
        self.limits.check(batch)?;
        if batch.exact_rows() < batch.rows() && !self.limits.has_fast_rows {
            return Err(BatchError::NoFastRows);
        }
        Ok(())
    }
}

/// A pool stays usable when a region panics, and what is only replaced is always whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PageBytes for CpuRunner {
    fn read(&mut self, range: Range<usize>) -> Cow<'_, [u8]> {
        self.pages.read(range)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.pages.write(offset, bytes);
    }

    fn copy(&mut self, from: Range<usize>, to: usize) {
        self.pages.copy(from, to);
    }

    fn convert(&mut self, conversions: &[Conversion]) {
        self.pages.convert(&mut lock(&self.pool), conversions);
    }

    fn discard(&mut self, range: Range<usize>) {
        self.pages.discard(range);
    }

    fn copy_state(&mut self, from: StateSlot, to: StateSlot, tokens: usize) {
        self.state.states_mut().copy(&mut lock(&self.pool), from, to, tokens);
    }

    fn read_state(&mut self, slot: StateSlot, tokens: usize) -> Cow<'_, [u8]> {
        Cow::Owned(self.state.states_mut().read(&mut lock(&self.pool), slot, tokens))
    }

    fn write_state(&mut self, slot: StateSlot, tokens: usize, bytes: &[u8]) -> bool {
        self.state.states_mut().write(slot, tokens, bytes)
    }

    fn discard_state(&mut self, slot: StateSlot) {
        self.state.states_mut().discard(slot);
    }
}

impl Runner for CpuRunner {
    fn limits(&self) -> &RunnerLimits {
        &self.limits
    }

    fn reserve_pages(&mut self, bytes: usize, rotation: Rotation) {
        self.pages = HostPages::new(&lock(&self.pool), self.limits.kv_shape, rotation, bytes);
    }

    fn reserve_states(&mut self, slots: usize) {
        self.state.reserve_states(&lock(&self.pool), slots);
    }

    fn set_rotation(&mut self, rotation: Rotation) {
        self.pages.set_rotation(rotation);
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        self.check(batch)?;
        let checked = batch.check(self.limits.kv_shape, self.pages.bytes())?;
        self.state.check_states(batch)?;
        let began = Instant::now();
        let mut pool = lock(&self.pool);
        self.state.use_adapters(&pool, batch, &self.adapters)?;
        self.state.use_row_kernels(&pool, self.row_kernels.get());
        self.model.forward(&mut pool, &mut self.state, &self.pages, checked);
        self.run_time += began.elapsed();
        Ok(())
    }

    fn wait(&mut self) -> Result<(), RunnerError> {
        Ok(())
    }

    fn logits(&mut self, i: usize) -> &mut [f32] {
        self.state.logits(i)
    }

    fn candidates(&mut self, i: usize, count: usize, out: &mut Vec<Candidate>) -> Result<(), NotFinite> {
        self.scan.find(self.state.logits(i), count, out)
    }

    fn hidden_state(&mut self, row: usize, out: &mut [f32]) {
        self.model.hidden_state(&mut self.state, row, out);
    }

    fn has_adapter(&self, adapter: AdapterId) -> bool {
        self.adapters.get(adapter).is_some()
    }

    fn yield_device(&mut self) {
        lock(&self.pool).rest();
    }

    fn take_device_wait(&mut self) -> Duration {
        lock(&self.pool).take_waited_for_cores()
    }

    fn take_run_time(&mut self) -> Duration {
        std::mem::take(&mut self.run_time)
    }

    fn take_pass_times(&mut self) -> PassTimes {
        lock(&self.pool).take_pass_times()
    }
}
