//! Recurrent states of sequences, and their snapshots at the ends of cached pages.

use ruvllm_runner::{PAGE_TOKENS, PageBytes, StateSlot, TokenId};

use super::{KvCache, OutOfPages, PageTable};
use crate::prefix::{PageHash, TextNamespaces};
use crate::states::snapshot_spacing;

/// Where the state before a sequence's next token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateSource {
    Memory(StateSlot),
    Disk,
}

impl KvCache {
    /// Whether sequences have recurrent states.
    pub fn has_states(&self) -> bool {
        self.states.exist()
    }

    /// Returns how many tokens lie between the snapshots of a long prompt.
    pub fn snapshot_spacing(&self) -> usize {
        snapshot_spacing(self.state_bytes, self.map().page_bytes(self.tiers.hot))
    }

    /// Gives a new sequence a slot for its state, if the model has any.
    pub fn begin_state(&mut self, table: &mut PageTable, bytes: &mut dyn PageBytes) -> Result<(), OutOfPages> {
        if self.has_states() && table.state.is_none() {
            table.state = Some(self.allocate_state(bytes).ok_or(OutOfPages { needed: 0 })?);
        }
        Ok(())
    }

    /// Hands out a slot, giving up snapshots if needed.
    fn allocate_state(&mut self, bytes: &mut dyn PageBytes) -> Option<StateSlot> {
        loop {
            if let Some(slot) = self.states.take() {
                return Some(slot);
            }
            let hash = self.states.least_useful()?;
            self.save_state(hash, bytes);
            self.states.forget(hash);
        }
    }

    /// Takes a snapshot of a sequence's state behind `tokens`, which fill cached pages. It replaces that of `before`, if one is
    /// named and still there. Returns its name, for the next one to replace it; `None` if there is no room, or the pages are
    /// not cached.
    pub fn take_snapshot(
        &mut self,
        namespaces: impl Into<TextNamespaces>,
        tokens: &[TokenId],
        table: &PageTable,
        before: Option<PageHash>,
        bytes: &mut dyn PageBytes,
    ) -> Option<PageHash> {
        let state = table.state?;
        let namespaces = namespaces.into();
        let found = self.tree.find_text(&namespaces, tokens);
        if tokens.is_empty() || found.pages.len() * PAGE_TOKENS != tokens.len() {
            return None;
        }
        if let Some(known) = self.states.find(found.hash) {
            debug_assert_eq!(known.tokens, tokens.len());
            self.states.used(found.hash);
            return None;
        }
        if let Some(before) = before {
            self.states.forget(before);
        }
        let slot = self.allocate_state(bytes)?;
        bytes.copy_state(state, slot, tokens.len());
        self.states.keep(found.hash, namespaces.first(), tokens.len(), slot);
        Some(found.hash)
    }

    /// Finds the last of some pages, named by their hashes, at whose end there is a snapshot. Returns how many pages end with it.
    pub(super) fn last_snapshot(&self, pages: &[PageHash]) -> Option<(usize, StateSource)> {
        let source = |hash: PageHash| match self.states.find(hash) {
            Some(snapshot) => Some(StateSource::Memory(snapshot.slot)),
            None => {
                let is_on_disk = self.disk.as_ref().is_some_and(|disk| disk.contains(hash.of_state()));
                is_on_disk.then_some(StateSource::Disk)
            }
        };
        pages.iter().enumerate().rev().find_map(|(index, hash)| Some((index + 1, source(*hash)?)))
    }

    /// Puts the state at the end of a page into a sequence's slot. Returns whether it could be had.
    pub(super) fn restore_state(
        &mut self,
        hash: PageHash,
        tokens: usize,
        source: StateSource,
        slot: StateSlot,
        bytes: &mut dyn PageBytes,
    ) -> bool {
        match source {
            // If it was given up for the sequence's own slot, that is the slot, and it still holds it.
            StateSource::Memory(from) => {
                bytes.copy_state(from, slot, tokens);
                self.states.used(hash);
                true
            }
            StateSource::Disk => {
                let saved = self.disk.as_mut().and_then(|disk| disk.read(hash.of_state()));
                saved.is_some_and(|saved| saved.format.is_none() && bytes.write_state(slot, tokens, &saved.bytes))
            }
        }
    }

    /// Queues a snapshot for writing, unless it is on disk.
    pub(super) fn save_state(&mut self, hash: PageHash, bytes: &mut dyn PageBytes) {
        let Some(snapshot) = self.states.find(hash).filter(|snapshot| !snapshot.is_saved) else { return };
        if let Some(disk) = &mut self.disk {
            disk.write(hash.of_state(), None, bytes.read_state(snapshot.slot, snapshot.tokens));
            self.states.saved(hash);
        }
    }

    /// Queues snapshots that are not on disk for writing, as far as the disk tier accepts them without blocking. Returns how
    /// many remain.
    pub fn queue_states(&mut self, bytes: &mut dyn PageBytes) -> usize {
        let unsaved: Vec<PageHash> = self.states.unsaved().filter(|_| self.disk.is_some()).collect();
        let mut left = unsaved.len();
        for hash in unsaved {
            if self.disk.as_ref().is_some_and(|disk| !disk.has_room(self.state_bytes)) {
                break;
            }
            self.save_state(hash, bytes);
            left -= 1;
        }
        left
    }

    /// Queues all snapshots that are not on disk for writing.
    pub(super) fn save_states(&mut self, bytes: &mut dyn PageBytes) {
        let unsaved: Vec<PageHash> = self.states.unsaved().filter(|_| self.disk.is_some()).collect();
        unsaved.into_iter().for_each(|hash| self.save_state(hash, bytes));
    }

    /// Gives up snapshots until their share of the budget is kept.
    pub(super) fn enforce_state_limit(&mut self, bytes: &mut dyn PageBytes) -> bool {
        while self.states.is_over_limit() {
            let Some(hash) = self.states.least_useful() else { return false };
            self.save_state(hash, bytes);
            if let Some(slot) = self.states.forget(hash) {
                bytes.discard_state(slot);
            }
        }
        true
    }
}
