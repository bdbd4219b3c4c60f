//! Eviction and demotion of cached pages, and writing them to disk.

use ruvllm_runner::{PageBytes, PageFormat, PageId, PageLayers};

use super::{Cached, KvCache};
use crate::accounts::{AccountId, Accounts};
use crate::disk::DiskTier;

/// Memory pressure begins above the first share of the budget and ends below the second.
const PRESSURE_BEGINS: f64 = 0.85;
const PRESSURE_ENDS: f64 = 0.70;
/// Pages that are demoted or evicted between two steps: each takes a fraction of a millisecond, and sequences wait.
const PAGES_BETWEEN_STEPS: usize = 4;
/// Pages that are queued for the disk between two steps: as many as a step of 128 prompt tokens fills.
const WRITES_BETWEEN_STEPS: usize = 8;
/// Cached pages that are scanned for one that can be demoted.
const SCANNED_PAGES_MAX: usize = 256;

impl KvCache {
    /// Does a bounded amount of maintenance between two steps: demotes and evicts under memory pressure, queues disk writes.
    pub fn maintain(&mut self, bytes: &mut dyn PageBytes) {
        let share = self.map().bytes_in_use() as f64 / self.map().bytes_budget() as f64;
        self.is_under_pressure = share > if self.is_under_pressure { PRESSURE_ENDS } else { PRESSURE_BEGINS };
        if self.is_under_pressure {
            let trimmed = self.trim_cached(PAGES_BETWEEN_STEPS, bytes);
            let cooled = trimmed + self.demote_cached(PAGES_BETWEEN_STEPS - trimmed, bytes);
            for _ in cooled..PAGES_BETWEEN_STEPS {
                if self.evict_page(None, bytes).is_none() {
                    break;
                }
            }
        }
        self.enforce_budget(PAGES_BETWEEN_STEPS, bytes);
        self.queue_writes(WRITES_BETWEEN_STEPS, bytes);
    }

    /// Changes the budget, up to its initial value, and evicts cached prefixes until it is kept. Returns whether it is; if
    /// running sequences use too much of it, `maintain` keeps trying.
    pub fn set_budget(&mut self, budget_bytes: usize, bytes: &mut dyn PageBytes) -> bool {
        let budget_bytes = budget_bytes.min(self.budget_bytes);
        // Sidecars have the same share as at first.
        let memory = (budget_bytes as u128 * self.memory_bytes as u128 / (self.budget_bytes as u128).max(1)) as usize;
        self.pages.set_budget(memory);
        let slots = self.states.slots() as u128 * budget_bytes as u128 / (self.budget_bytes as u128).max(1);
        self.states.set_limit(slots as usize);
        self.enforce_budget(usize::MAX, bytes) & self.enforce_state_limit(bytes)
    }

    /// Evicts up to `pages` cached pages while more memory is held than the budget allows. Returns whether the budget is kept.
    fn enforce_budget(&mut self, pages: usize, bytes: &mut dyn PageBytes) -> bool {
        let mut is_kept = self.pages.trim(bytes);
        for _ in 0..pages {
            if is_kept || self.evict_page(None, bytes).is_none() {
                break;
            }
            is_kept = self.pages.trim(bytes);
        }
        is_kept
    }

    /// Demotes up to `count` cached pages that no sequence uses, in eviction order. Returns how many were demoted.
    fn demote_cached(&mut self, count: usize, bytes: &mut dyn PageBytes) -> usize {
        let colder = |page: PageId| {
            let format = self.map().format(page);
            let whole = PageFormat { layers: PageLayers::All, ..format };
            let next = if whole == self.tiers.hot { self.tiers.warm } else { self.tiers.cold };
            let next = PageFormat { layers: format.layers, ..next };
            (self.pages.users(page) == 1 && next != format).then_some((page, next))
        };
        let chosen: Vec<_> = self.tree.by_worth().take(SCANNED_PAGES_MAX).filter_map(colder).take(count).collect();
        chosen.into_iter().map(|(page, to)| self.demote(&[page], to, bytes)).sum()
    }

    /// Saves and evicts the least valuable cached page. `None` if all are in use or guaranteed to accounts other than
    /// `asking`.
    pub(super) fn evict_page(&mut self, asking: Option<AccountId>, bytes: &mut dyn PageBytes) -> Option<()> {
        self.evict_page_if(|accounts, owner, page_bytes| accounts.may_go(owner, page_bytes, asking), bytes)
    }

    /// Evicts pages of an account that exceeds its limit.
    pub(super) fn enforce_limit(&mut self, account: AccountId, bytes: &mut dyn PageBytes) {
        while self.accounts.is_over_limit(account) {
            if self.evict_page_if(|_, owner, _| owner == account, bytes).is_none() {
                break;
            }
        }
    }

    fn evict_page_if(
        &mut self,
        may_go: impl Fn(&Accounts, AccountId, usize) -> bool,
        bytes: &mut dyn PageBytes,
    ) -> Option<()> {
        let Self { tree, pages, cached, accounts, .. } = self;
        let evicted = tree.evict(|page| {
            let page_bytes = pages.map().page_bytes(pages.map().format(page));
            let owner = cached[page.0 as usize].map(|cached| cached.account);
            pages.users(page) == 1 && owner.is_some_and(|owner| may_go(accounts, owner, page_bytes))
        })?;
        self.save_page(evicted, bytes);
        if let Some(cached) = self.cached(evicted) {
            self.save_state(cached.hash, bytes);
        }
        self.drop_cached(evicted);
        self.evicted_pages += 1;
        Some(())
    }

    /// Evicts cached pages until `pages` hot ones fit. Evicts none if even evicting all would not be enough.
    pub(super) fn make_room(&mut self, pages: usize, asking: AccountId, bytes: &mut dyn PageBytes) -> bool {
        let map = self.map();
        let free = map.bytes_budget().saturating_sub(map.bytes_in_use());
        if free + self.accounts.spare_bytes(asking) < pages * map.page_bytes(self.tiers.hot) {
            return false;
        }
        while !self.map().could_allocate(self.tiers.hot, pages) {
            if self.evict_page(Some(asking), bytes).is_none() {
                return false;
            }
        }
        true
    }

    /// Queues up to `count` unsaved cached pages for writing, as long as the disk tier accepts them without blocking. Returns
    /// how many remain unsaved.
    pub fn queue_writes(&mut self, count: usize, bytes: &mut dyn PageBytes) -> usize {
        for _ in 0..count {
            let Some(page) = self.unsaved.front().copied() else { break };
            if self.cached(page).is_some()
                && self.disk.as_ref().is_some_and(|disk| !disk.has_room(self.page_bytes(page)))
            {
                break;
            }
            self.unsaved.pop_front();
            self.save_page(page, bytes);
        }
        self.unsaved.len()
    }

    /// Saves up to `count` cached pages and blocks until they are on disk. Returns how many remain unsaved.
    pub fn save(&mut self, count: usize, bytes: &mut dyn PageBytes) -> usize {
        for _ in 0..count {
            let Some(page) = self.unsaved.pop_front() else { break };
            self.save_page(page, bytes);
        }
        if self.unsaved.is_empty() {
            self.save_states(bytes);
        }
        self.disk.iter().for_each(DiskTier::flush);
        self.unsaved.len()
    }

    /// Saves nothing from now on, and loads nothing: the bytes of the pages cannot be trusted any more.
    pub fn stop_saving(&mut self) {
        self.disk = None;
        self.unsaved.clear();
    }

    /// Queues a page for writing, unless it left the prefix tree meanwhile.
    pub(super) fn save_page(&mut self, page: PageId, bytes: &mut dyn PageBytes) {
        let Some(Cached { hash, .. }) = self.cached(page) else { return };
        let format = self.map().format(page);
        // What was trimmed was saved before.
        if let Some(disk) = self.disk.as_mut().filter(|_| format.layers == PageLayers::All) {
            disk.write(hash, format, self.pages.saved(page, bytes));
        }
    }
}
