//! The mutable buffers of a forward pass, allocated once for the largest batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{
    Activations, Adapted, AdapterRows, ExpertBuffers, HostStates, Linear, Matrix, RowKernels, RowOperation,
    SplitResults,
};
use ruvllm_runner::{AdapterId, Batch, BatchError};

use crate::adapters::{AdapterBuffers, ResidentAdapters};
use crate::blocks::LayerInputBuffers;

/// The rows of the largest batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimits {
    pub all: usize,
    /// Those of them that give logits.
    pub logits: usize,
    /// Whether some may be fast.
    pub has_fast: bool,
}

impl RowLimits {
    /// Exact rows, all of which may give logits.
    pub fn exact(rows: usize) -> Self {
        Self { all: rows, logits: rows, has_fast: false }
    }
}

/// Buffers for batches of up to `rows_max` rows, of which `logit_rows_max` give logits. Made by `Model::run_state`.
#[derive(Debug)]
pub struct RunState {
    pub(crate) logit_rows_max: usize,
    pub(crate) rows_max: usize,
    /// The residual stream. `[rows, hidden]`
    pub(crate) x: Matrix,
    /// The residual stream as the next block's input. `[rows, hidden]`
    pub(crate) normed: Activations,
    /// `[rows, heads + 2 kv_heads, head_dim]`
    pub(crate) qkv: Widths<Matrix>,
    pub(crate) split_results: SplitResults,
    /// `[rows, heads, head_dim]`
    pub(crate) attended: Widths<Activations>,
    /// Of dense feed-forward blocks. `[rows, feed_forward]`
    pub(crate) gated: Widths<Activations>,
    /// Of models with experts.
    pub(crate) experts: Option<ExpertBuffers>,
    /// Of models with recurrent layers.
    pub(crate) recurrent: Option<RecurrentBuffers>,
    /// Of models with experts beside dense blocks: the input of routers and the results of experts.
    pub(crate) routed: Option<Activations>,
    pub(crate) expert_results: Matrix,
    /// Of models in which tokens bring an input for each layer.
    pub(crate) layer_inputs: Option<LayerInputBuffers>,
    /// The result of a block whose projection is changed before it is added; no rows if there is none. `[rows, hidden]`
    pub(crate) projected: Matrix,
    /// The gate of an expert that all tokens share; no rows if there is none. `[rows, 1]`
    pub(crate) shared_gate: Matrix,
    /// The rows of `normed` that give logits. `[logit_rows, hidden]`
    pub(crate) gathered: Activations,
    /// `[logit_rows, vocabulary]`
    pub(crate) logits: Matrix,
    /// The rows that have adapters, since the first batch with any.
    pub(crate) adapters: Option<AdapterRows>,
    /// Whether the batch has such rows.
    pub(crate) uses_adapters: bool,
    /// What computes some operations on rows instead of the kernels of the pool.
    pub(crate) row_kernels: Option<RowKernelsInUse>,
}

/// Kernels from outside, with the operations that they had when the batch began: all workers must take the same phases.
#[derive(Debug)]
pub(crate) struct RowKernelsInUse {
    kernels: Arc<dyn RowKernels>,
    operations: Vec<RowOperation>,
}

/// Buffers of each width that layers need.
#[derive(Debug)]
pub(crate) struct Widths<T>(Vec<(usize, T)>);

impl<T> Widths<T> {
    /// Returns the buffer with so many columns.
    pub(crate) fn of(&self, cols: usize) -> &T {
        let found = self.0.iter().find(|(width, _)| *width == cols);
        &found.expect("made for the layers of the model").1
    }
}

impl Widths<Matrix> {
    pub(crate) fn new(pool: &Pool, rows: usize, widths: impl IntoIterator<Item = usize>) -> Self {
        let widths: BTreeSet<usize> = widths.into_iter().collect();
        Self(widths.into_iter().map(|cols| (cols, Matrix::new(pool, rows, cols))).collect())
    }
}

impl Widths<Activations> {
    pub(crate) fn new<'a>(
        pool: &Pool,
        rows: usize,
        has_fast_rows: bool,
        consumers: impl IntoIterator<Item = &'a Linear>,
    ) -> Self {
        let mut by_width: BTreeMap<usize, Vec<&Linear>> = BTreeMap::new();
        for consumer in consumers {
            by_width.entry(consumer.cols()).or_default().push(consumer);
        }
        let buffers = by_width.into_iter();
        Self(buffers.map(|(cols, consumers)| (cols, inputs_of(pool, rows, has_fast_rows, consumers))).collect())
    }
}

/// Room for `rows` inputs of `consumers`, which take rows of prompts in bf16 where there are such.
pub(crate) fn inputs_of<'a>(
    pool: &Pool,
    rows: usize,
    has_fast_rows: bool,
    consumers: impl IntoIterator<Item = &'a Linear>,
) -> Activations {
    let inputs = Activations::new(pool, rows, consumers);
    if has_fast_rows { inputs.in_bf16(pool, false) } else { inputs }
}

/// What recurrent layers need: buffers, and the states of sequences, which stay between forward passes.
#[derive(Debug)]
pub(crate) struct RecurrentBuffers {
    /// What a layer is given, projected.
    pub input: Matrix,
    pub output: Activations,
    pub states: HostStates,
}

impl RunState {
    pub(crate) fn recurrent(&self) -> &RecurrentBuffers {
        self.recurrent.as_ref().expect("made for models with recurrent layers")
    }

    pub(crate) fn layer_inputs(&self) -> &LayerInputBuffers {
        self.layer_inputs.as_ref().expect("made for models with such inputs")
    }

    /// Returns weights with what the adapters of the batch add to them; `number` is theirs in adapters.
    pub(crate) fn adapted<'a>(&'a self, weights: &'a Linear, number: usize) -> Adapted<'a> {
        if self.uses_adapters { Adapted::new(weights, self.adapters.as_ref(), number) } else { weights.into() }
    }

    /// Finds the adapters that a batch names. Fails if one is not in memory.
    pub(crate) fn use_adapters(
        &mut self,
        pool: &Pool,
        batch: &Batch,
        resident: &ResidentAdapters,
    ) -> Result<(), BatchError> {
        self.uses_adapters = batch.has_adapters();
        if !self.uses_adapters {
            return Ok(());
        }
        let mut groups: BTreeMap<AdapterId, Vec<usize>> = BTreeMap::new();
        for (id, rows) in batch.sequences().iter().filter_map(|sequence| sequence.adapted_rows()) {
            groups.entry(id).or_default().extend(rows);
        }
        let found = groups.into_iter().map(|(id, rows)| Some((resident.get(id)?, rows)));
        let found: Vec<_> = found.collect::<Option<_>>().ok_or(BatchError::NoSuchAdapter)?;
        self.reserve_floats(pool);
        self.adapters.get_or_insert_with(|| AdapterRows::new(pool)).set(pool, self.rows_max, found);
        Ok(())
    }

    /// Sets what computes operations on rows in the next batches, and makes the room that this takes, once.
    pub(crate) fn use_row_kernels(&mut self, pool: &Pool, row_kernels: Option<Arc<dyn RowKernels>>) {
        self.row_kernels = row_kernels.and_then(|kernels| {
            let operations: Vec<_> = RowOperation::ALL.into_iter().filter(|one| kernels.has(*one)).collect();
            (!operations.is_empty()).then_some(RowKernelsInUse { kernels, operations })
        });
        if self.row_kernels_for(RowOperation::RmsNorm).is_some() && self.projected.rows() < self.rows_max {
            self.projected = Matrix::new(pool, self.rows_max, self.x.cols());
        }
    }

    /// Returns the kernels from outside for an operation, if there are any.
    pub(crate) fn row_kernels_for(&self, operation: RowOperation) -> Option<&dyn RowKernels> {
        let in_use = self.row_kernels.as_ref()?;
        in_use.operations.contains(&operation).then_some(&*in_use.kernels)
    }

    /// Makes room for the inputs of adapters, once.
    fn reserve_floats(&mut self, pool: &Pool) {
        let widths = self.attended.0.iter_mut().chain(&mut self.gated.0).map(|(_, inputs)| inputs);
        let recurrent = self.recurrent.iter_mut().map(|recurrent| &mut recurrent.output);
        widths.chain(recurrent).chain([&mut self.normed]).for_each(|inputs| inputs.reserve_floats(pool));
    }

    /// Returns what batches with adapters take in addition.
    pub(crate) fn adapter_buffers(&self) -> AdapterBuffers {
        let widths = self.attended.0.iter().chain(&self.gated.0).map(|(_, inputs)| inputs);
        let recurrent = self.recurrent.iter().map(|recurrent| &recurrent.output);
        let inputs = widths.chain(recurrent).chain([&self.normed]);
        AdapterBuffers {
            input_bytes: inputs.map(Activations::bytes_for_adapters).sum(),
            rank_bytes: AdapterRows::bytes_of_rank(self.rows_max),
        }
    }

    /// Makes room for the recurrent states of `slots` sequences, if the model has any.
    pub fn reserve_states(&mut self, pool: &Pool, slots: usize) {
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.states = HostStates::new(pool, recurrent.states.shape().clone(), slots);
        }
    }

    /// Checks that each sequence of a batch goes on from a recurrent state that there is.
    pub(crate) fn check_states(&self, batch: &Batch) -> Result<(), BatchError> {
        self.recurrent.as_ref().map_or(Ok(()), |recurrent| recurrent.states.check(batch))
    }

    /// Returns the recurrent states. Panics if the model has none.
    pub fn states_mut(&mut self) -> &mut HostStates {
        &mut self.recurrent.as_mut().expect("a model with recurrent layers").states
    }

    pub fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// Returns the logits of the `i`-th logit row of the last forward pass.
    pub fn logits(&mut self, i: usize) -> &mut [f32] {
        self.logits.row_mut(i)
    }
}
