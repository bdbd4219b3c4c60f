//! Recurrent states in this machine's memory: what layers keep of a sequence beside keys and values, a slot for each.
//!
//! The states of draft tokens are never stored: beside the matrices of the last certain token stands what each draft token
//! would add to them, and that is added when it turns out that the sequence goes on from there.

use std::ops::Range;

use ruvllm_runner::{Batch, BatchError, StateSlot};

use crate::threads::{Access, Pool, Shared, Worker};

/// Maximum taps of a convolution.
pub const TAPS_MAX: usize = 8;

/// What one recurrent layer keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerState {
    /// The convolution over the last tokens: channels, and tokens that it sees.
    pub channels: usize,
    pub taps: usize,
    pub delta: Option<DeltaShape>,
}

/// The heads of a gated delta net. Value head `h` has the keys of head `h % key_heads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl DeltaShape {
    fn matrix(&self) -> usize {
        self.key_dim * self.value_dim
    }

    /// Numbers that one draft token adds: of each value head its key, update and decay.
    fn draft(&self) -> usize {
        self.value_heads * (self.key_dim + self.value_dim + 1)
    }
}

impl LayerState {
    /// Tokens whose inputs of the convolution are kept: for any of the draft tokens to be the last.
    fn ring(&self, drafts: usize) -> usize {
        self.taps + drafts
    }

    /// Numbers that are kept.
    fn len(&self, drafts: usize) -> usize {
        let delta = self.delta.map_or(0, |delta| delta.value_heads * delta.matrix() + drafts * delta.draft());
        (self.ring(drafts) * self.channels + delta).next_multiple_of(16)
    }
}

/// What all recurrent layers of a model keep of a sequence, so that up to `drafts` draft tokens can be taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    pub layers: Vec<LayerState>,
    pub drafts: usize,
}

impl StateShape {
    /// Bytes of a state; 0 if there are no such layers.
    pub fn bytes(&self) -> usize {
        self.len() * size_of::<f32>()
    }

    fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.len(self.drafts)).sum()
    }

    fn start(&self, layer: usize) -> usize {
        self.layers[..layer].iter().map(|layer| layer.len(self.drafts)).sum()
    }
}

/// How far the state in a slot is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Tokens that it is behind for certain.
    tokens: usize,
    /// Draft tokens that may follow.
    drafts: usize,
}

/// The states of many sequences. Memory is taken from the system when a slot is first used.
#[derive(Debug)]
pub struct HostStates {
    data: Shared<f32>,
    shape: StateShape,
    progress: Vec<Progress>,
}

impl HostStates {
    pub fn new(pool: &Pool, shape: StateShape, slots: usize) -> Self {
        Self { data: Shared::zeroed(pool, slots * shape.len()), shape, progress: vec![Progress::default(); slots] }
    }

    pub fn shape(&self) -> &StateShape {
        &self.shape
    }

    /// Checks that each sequence of a batch goes on from a state that there is.
    pub fn check(&self, batch: &Batch) -> Result<(), BatchError> {
        for sequence in batch.sequences().iter().filter(|_| !self.shape.layers.is_empty()) {
            let state = sequence.state.ok_or(BatchError::NoState)?;
            let Some(progress) = self.progress.get(state.slot.0 as usize) else { return Err(BatchError::NoState) };
            let start = sequence.start;
            let is_behind = (progress.tokens..=progress.tokens + progress.drafts).contains(&start);
            if (start > 0 && !is_behind) || state.drafts > self.shape.drafts {
                return Err(BatchError::StateElsewhere { slot: state.slot, start });
            }
        }
        Ok(())
    }

    /// Notes that a batch has run.
    pub fn advance(&mut self, batch: &Batch) {
        for sequence in batch.sequences() {
            if let Some(state) = sequence.state {
                let tokens = sequence.tokens() - state.drafts;
                self.progress[state.slot.0 as usize] = Progress { tokens, drafts: state.drafts };
            }
        }
    }

    fn range(&self, slot: StateSlot) -> Range<usize> {
        let len = self.shape.len();
        slot.0 as usize * len..(slot.0 as usize + 1) * len
    }

    /// Copies a state to another slot, as it is behind `tokens` tokens. Panics if it is not known.
    pub fn copy(&mut self, pool: &mut Pool, from: StateSlot, to: StateSlot, tokens: usize) {
        self.settle(pool, from, tokens);
        let (from, to_range) = (self.range(from), self.range(to));
        self.data.as_mut_slice().copy_within(from, to_range.start);
        self.progress[to.0 as usize] = Progress { tokens, drafts: 0 };
    }

    /// Returns the bytes of a state as it is behind `tokens` tokens. Panics if it is not known.
    pub fn read(&mut self, pool: &mut Pool, slot: StateSlot, tokens: usize) -> Vec<u8> {
        self.settle(pool, slot, tokens);
        let range = self.range(slot);
        self.data.as_mut_slice()[range].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Overwrites a state with what `read` returned of one behind `tokens` tokens. Returns whether the length is right.
    pub fn write(&mut self, slot: StateSlot, tokens: usize, bytes: &[u8]) -> bool {
        if bytes.len() != self.shape.bytes() {
            return false;
        }
        let range = self.range(slot);
        let numbers =
            bytes.chunks_exact(size_of::<f32>()).map(|four| f32::from_le_bytes(four.try_into().expect("four")));
        self.data.as_mut_slice()[range].iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
        self.progress[slot.0 as usize] = Progress { tokens, drafts: 0 };
        true
    }

    pub fn discard(&mut self, slot: StateSlot) {
        let range = self.range(slot);
        self.data.release_to_os(range);
    }

    /// Adds the draft tokens up to `tokens` to a state: they were right.
    fn settle(&mut self, pool: &mut Pool, slot: StateSlot, tokens: usize) {
        let Progress { tokens: certain, drafts } = self.progress[slot.0 as usize];
        assert!((certain..=certain + drafts).contains(&tokens), "{slot} is behind {certain} tokens, not {tokens}");
        if tokens > certain {
            let states = &*self;
            pool.run(|worker| {
                let units = states.shape.layers.iter().enumerate().flat_map(|(index, layer)| {
                    (0..layer.delta.map_or(0, |delta| delta.value_heads)).map(move |head| (index, head))
                });
                let units: Vec<(usize, usize)> = units.collect();
                for unit in worker.units().take_while(|unit| *unit < units.len()) {
                    let (layer, head) = units[unit];
                    // SAFETY: each head of a layer is one worker's unit.
                    let mut state = unsafe { states.delta(worker, slot, layer, head) };
                    state.apply(worker, tokens - certain);
                }
            });
        }
        self.progress[slot.0 as usize] = Progress { tokens, drafts: 0 };
    }

    /// Returns how many draft tokens turned out right, if a sequence goes on from `start`.
    pub(super) fn accepted(&self, slot: StateSlot, start: usize) -> usize {
        start.saturating_sub(self.progress[slot.0 as usize].tokens)
    }

    /// Where a layer's part of a slot begins.
    fn layer_start(&self, worker: &Worker<'_>, slot: StateSlot, layer: usize) -> *mut f32 {
        let at = self.range(slot).start + self.shape.start(layer);
        assert!(at + self.shape.layers[layer].len(self.shape.drafts) <= self.data.len());
        self.data.write(worker, Access::WriteStates).wrapping_add(at)
    }

    /// Returns some channels of a layer's convolution.
    ///
    /// # Safety
    /// These channels are this worker's, and there is no other view of them.
    pub(super) unsafe fn conv(
        &self,
        worker: &Worker<'_>,
        slot: StateSlot,
        layer: usize,
        channels: Range<usize>,
    ) -> ConvState {
        let shape = &self.shape.layers[layer];
        assert!(channels.start <= channels.end && channels.end <= shape.channels);
        let start = self.layer_start(worker, slot, layer).wrapping_add(channels.start);
        ConvState { start, stride: shape.channels, ring: shape.ring(self.shape.drafts), len: channels.len() }
    }

    /// Returns one value head of a layer's delta net.
    ///
    /// # Safety
    /// The head is this worker's, and there is no other view of it.
    pub(super) unsafe fn delta<'w>(
        &self,
        worker: &'w Worker<'_>,
        slot: StateSlot,
        layer: usize,
        head: usize,
    ) -> DeltaState<'w> {
        let shape = &self.shape.layers[layer];
        let delta = shape.delta.expect("a layer with a delta net");
        assert!(head < delta.value_heads);
        let matrices = shape.ring(self.shape.drafts) * shape.channels;
        let draft_len = delta.key_dim + delta.value_dim + 1;
        let (matrix, drafts) =
            (delta.matrix() * head, delta.value_heads * delta.matrix() + head * self.shape.drafts * draft_len);
        let start = self.layer_start(worker, slot, layer).wrapping_add(matrices);
        // SAFETY: both lie within the layer's part of the slot, and are this worker's by the caller's promise.
        unsafe {
            DeltaState {
                key_dim: delta.key_dim,
                matrix: std::slice::from_raw_parts_mut(start.add(matrix), delta.matrix()),
                drafts: std::slice::from_raw_parts_mut(start.add(drafts), self.shape.drafts * draft_len),
            }
        }
    }
}

/// The last inputs of some channels of a convolution, a ring by the tokens' positions.
pub(super) struct ConvState {
    start: *mut f32,
    stride: usize,
    ring: usize,
    len: usize,
}

impl ConvState {
    /// The inputs of the token at a position.
    pub(super) fn at_mut(&mut self, position: usize) -> &mut [f32] {
        // SAFETY: within the ring; `HostStates::conv` was promised that nobody else has these channels.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(position % self.ring * self.stride), self.len) }
    }

    pub(super) fn at(&self, position: usize) -> &[f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start.add(position % self.ring * self.stride), self.len) }
    }
}

/// The state of one head of a delta net, and what draft tokens would add to it.
pub(super) struct DeltaState<'w> {
    key_dim: usize,
    /// `[key_dim, value_dim]`
    pub matrix: &'w mut [f32],
    /// For each draft token its decay, key and update.
    drafts: &'w mut [f32],
}

impl DeltaState<'_> {
    fn draft_len(&self) -> usize {
        1 + self.key_dim + self.matrix.len() / self.key_dim
    }

    /// Adds the first `count` draft tokens to the state.
    pub(super) fn apply(&mut self, worker: &Worker<'_>, count: usize) {
        let len = self.draft_len();
        for draft in self.drafts[..count * len].chunks_exact(len) {
            let (key, update) = draft[1..].split_at(self.key_dim);
            // SAFETY: the lengths are those of the head, which the model's description has checked.
            unsafe { (worker.kernels().delta_apply)(key, update, draft[0], self.matrix) };
        }
    }

    /// Notes what a draft token would add.
    pub(super) fn note(&mut self, index: usize, decay: f32, key: &[f32], update: &[f32]) {
        let len = self.draft_len();
        let draft = &mut self.drafts[index * len..][..len];
        draft[0] = decay;
        draft[1..][..self.key_dim].copy_from_slice(key);
        draft[1 + self.key_dim..].copy_from_slice(update);
    }
}
