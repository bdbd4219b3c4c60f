//! Slots for recurrent states, of models whose layers keep more of a sequence than keys and values: one for each sequence
//! that runs, the others for snapshots of states at the ends of cached pages. Where there is a snapshot, a sequence that
//! begins with the same tokens goes on from there.

use std::collections::HashMap;

use ruvllm_runner::{KvShape, PAGE_TOKENS, StateSlot};

use crate::cache::KvOptions;
use crate::prefix::{Namespace, PageHash};

/// A step of a prompt ends at each snapshot, so they are at least this far apart.
const SPACING_MIN: usize = 512;

/// Returns how many tokens lie between the snapshots of a long prompt: so many that states take no more memory than pages.
pub(crate) fn snapshot_spacing(state_bytes: usize, page_bytes: usize) -> usize {
    (state_bytes.div_ceil(page_bytes.max(1)) * PAGE_TOKENS).max(SPACING_MIN)
}

impl KvOptions {
    /// Returns the smallest budget of which `reserve_states` leaves `paged_bytes` for pages, and two states.
    pub fn budget_with_states(paged_bytes: usize, state_bytes: usize) -> usize {
        if state_bytes == 0 { paged_bytes } else { paged_bytes.saturating_add(paged_bytes.max(2 * state_bytes)) }
    }

    /// Sets a part of the budget aside for recurrent states of `state_bytes` bytes each: one for each of `sequences`
    /// sequences that run at once, and as many snapshots as pages are worth having. At most half of the budget.
    pub fn reserve_states(&mut self, shape: KvShape, state_bytes: usize, sequences: usize) {
        if state_bytes == 0 {
            return;
        }
        let page_bytes = shape.page_bytes(self.tiers.hot);
        let spacing_pages = snapshot_spacing(state_bytes, page_bytes) / PAGE_TOKENS;
        let left = self.budget_bytes.saturating_sub(sequences * state_bytes);
        // Each run of so many pages has a snapshot, and each sequence one of its last page.
        let snapshots = left / (spacing_pages * page_bytes + state_bytes) + sequences;
        let slots_max = self.budget_bytes / 2 / state_bytes;
        (self.state_bytes, self.state_slots) = (state_bytes, (sequences + snapshots).min(slots_max).max(1));
    }

    /// Returns the budget of which `reserve_slots` leaves `paged_bytes` for pages.
    pub fn budget_with_slots(paged_bytes: usize, state_bytes: usize, sequences: usize) -> usize {
        paged_bytes.saturating_add(sequences.saturating_mul(state_bytes))
    }

    /// Sets a part of the budget aside for states of which there are no snapshots: one for each of `sequences` sequences. At
    /// most half of the budget, but one.
    pub fn reserve_slots(&mut self, state_bytes: usize, sequences: usize) {
        let slots_max = self.budget_bytes / 2 / state_bytes.max(1);
        (self.state_bytes, self.state_slots) = (state_bytes, sequences.min(slots_max).max(1));
    }
}

/// A state as it was at the end of a cached page.
#[derive(Debug)]
struct Snapshot {
    slot: StateSlot,
    namespace: Namespace,
    tokens: usize,
    /// When it was used last, by a clock that counts uses.
    used: u64,
    is_saved: bool,
}

/// A snapshot as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotAt {
    pub slot: StateSlot,
    pub tokens: usize,
    pub is_saved: bool,
}

/// Who has which slot.
#[derive(Debug, Default)]
pub(crate) struct States {
    slots: usize,
    /// How many of them may be in use; more are after the limit was lowered, until they are released.
    limit: usize,
    free: Vec<StateSlot>,
    snapshots: HashMap<PageHash, Snapshot>,
    clock: u64,
}

impl States {
    pub(crate) fn new(slots: usize) -> Self {
        // The first ones are handed out first.
        let free = (0..slots as u32).rev().map(StateSlot).collect();
        Self { slots, limit: slots, free, ..Self::default() }
    }

    /// Whether the model has recurrent states at all.
    pub(crate) fn exist(&self) -> bool {
        self.slots > 0
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    pub(crate) fn in_use(&self) -> usize {
        self.slots - self.free.len()
    }

    pub(crate) fn snapshots(&self) -> usize {
        self.snapshots.len()
    }

    /// Sets the share of the slots that may be used.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(1, self.slots.max(1));
    }

    pub(crate) fn is_over_limit(&self) -> bool {
        self.in_use() > self.limit
    }

    /// Hands out a slot, which may hold anything.
    pub(crate) fn take(&mut self) -> Option<StateSlot> {
        if self.in_use() < self.limit { self.free.pop() } else { None }
    }

    pub(crate) fn release(&mut self, slot: StateSlot) {
        debug_assert!(!self.free.contains(&slot));
        self.free.push(slot);
    }

    /// Makes a slot that was handed out the snapshot at the end of a page.
    pub(crate) fn keep(&mut self, hash: PageHash, namespace: Namespace, tokens: usize, slot: StateSlot) {
        self.clock += 1;
        let snapshot = Snapshot { slot, namespace, tokens, used: self.clock, is_saved: false };
        if let Some(before) = self.snapshots.insert(hash, snapshot) {
            self.release(before.slot);
        }
    }

    pub(crate) fn find(&self, hash: PageHash) -> Option<SnapshotAt> {
        let snapshot = self.snapshots.get(&hash)?;
        Some(SnapshotAt { slot: snapshot.slot, tokens: snapshot.tokens, is_saved: snapshot.is_saved })
    }

    /// Notes that a snapshot was used.
    pub(crate) fn used(&mut self, hash: PageHash) {
        self.clock += 1;
        if let Some(snapshot) = self.snapshots.get_mut(&hash) {
            snapshot.used = self.clock;
        }
    }

    pub(crate) fn saved(&mut self, hash: PageHash) {
        if let Some(snapshot) = self.snapshots.get_mut(&hash) {
            snapshot.is_saved = true;
        }
    }

    /// Gives a snapshot up.
    pub(crate) fn forget(&mut self, hash: PageHash) -> Option<StateSlot> {
        let slot = self.snapshots.remove(&hash)?.slot;
        self.release(slot);
        Some(slot)
    }

    /// Returns the snapshot that is missed least: of those who have most, the one that was not used for longest. So nobody
    /// loses theirs to the load of others.
    pub(crate) fn least_useful(&self) -> Option<PageHash> {
        let mut by_namespace: HashMap<Namespace, usize> = HashMap::new();
        for snapshot in self.snapshots.values() {
            *by_namespace.entry(snapshot.namespace).or_default() += 1;
        }
        let most = by_namespace.values().copied().max()?;
        let of_those = self.snapshots.iter().filter(|(_, snapshot)| by_namespace[&snapshot.namespace] == most);
        of_those.min_by_key(|(_, snapshot)| snapshot.used).map(|(hash, _)| *hash)
    }

    /// Returns the snapshots that are not on disk.
    pub(crate) fn unsaved(&self) -> impl Iterator<Item = PageHash> {
        self.snapshots.iter().filter(|(_, snapshot)| !snapshot.is_saved).map(|(hash, _)| *hash)
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_runner::PageFormat;

    use super::*;
    use crate::tiers::Tiers;

    #[test]
    fn slots_leave_the_pages_that_they_were_budgeted_with() {
        const SHAPE: KvShape = KvShape::new(1, 1, 16);
        for (paged, state_bytes, sequences, slots) in
            [(1 << 20, 1 << 10, 4, 4), (1 << 20, 1 << 10, 1, 1), (4000, 4000, 4, 2), (1000, 5000, 1, 1)]
        {
            let mut options = KvOptions::new(Tiers::uniform(PageFormat::F16));
            options.budget_bytes = KvOptions::budget_with_slots(paged, state_bytes, sequences);
            options.reserve_slots(state_bytes, sequences);
            assert_eq!(options.state_slots, slots, "{paged} and {sequences} of {state_bytes}");
            assert!(options.page_memory_bytes(SHAPE) >= paged);
        }
    }
}
