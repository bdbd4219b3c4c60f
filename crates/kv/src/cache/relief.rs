//! Making room, and saving what should outlive memory.

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::PageId;

use super::{Cached, KvCache};
use crate::accounts::{AccountId, Accounts};
use crate::disk::DiskTier;

/// Above this share of the budget cached prefixes make room, until less than the other is in use.
const PRESSURE_BEGINS: f64 = 0.85;
const PRESSURE_ENDS: f64 = 0.70;
/// Pages that are cooled or given up between two steps: each takes a fraction of a millisecond, and sequences wait.
const PAGES_BETWEEN_STEPS: usize = 4;
/// Pages that are copied for the disk between two steps: as many as a step of 128 prompt tokens fills.
const HANDED_OVER_BETWEEN_STEPS: usize = 8;
/// Cached pages that are looked at for one that can be cooled.
const LOOKED_AT_MAX: usize = 256;

impl KvCache {
    /// Does a little of what is due, between two steps: relieves pressure, hands pages to the disk.
    pub fn maintain(&mut self, pool: &mut Pool) {
        let share = self.memory().bytes_in_use() as f64 / self.memory().bytes_budget() as f64;
        self.is_under_pressure = share > if self.is_under_pressure { PRESSURE_ENDS } else { PRESSURE_BEGINS };
        if self.is_under_pressure {
            let cooled = self.cool_cached(pool, PAGES_BETWEEN_STEPS);
            for _ in cooled..PAGES_BETWEEN_STEPS {
                if self.give_up_page(None).is_none() {
                    break;
                }
            }
        }
        self.keep_within_budget(PAGES_BETWEEN_STEPS);
        self.hand_over(HANDED_OVER_BETWEEN_STEPS);
    }

    /// Changes the budget, up to what it was at first. Cached prefixes go until it is kept; tells whether it is. If sequences use
    /// too much of it, `maintain` goes on with it.
    pub fn set_budget(&mut self, bytes: usize) -> bool {
        let bytes = bytes.min(self.budget_bytes);
        // Notes have the same share as at first.
        let memory = (bytes as u128 * self.memory_bytes as u128 / (self.budget_bytes as u128).max(1)) as usize;
        self.pages.set_budget(memory);
        self.keep_within_budget(usize::MAX)
    }

    /// Gives up so many cached pages at most while more memory is held than the budget allows; tells whether no more is.
    fn keep_within_budget(&mut self, pages: usize) -> bool {
        let mut is_kept = self.pages.trim();
        for _ in 0..pages {
            if is_kept || self.give_up_page(None).is_none() {
                break;
            }
            is_kept = self.pages.trim();
        }
        is_kept
    }

    /// Puts cached pages that no sequence uses into the next colder format; tells how many. Those first that would be given
    /// up first.
    fn cool_cached(&mut self, pool: &mut Pool, count: usize) -> usize {
        let colder = |page: PageId| {
            let format = self.memory().format(page);
            let next = if format == self.tiers.hot { self.tiers.warm } else { self.tiers.cold };
            (self.pages.users(page) == 1 && next != format).then_some((page, next))
        };
        let chosen: Vec<_> = self.tree.by_worth().take(LOOKED_AT_MAX).filter_map(colder).take(count).collect();
        chosen.into_iter().map(|(page, to)| self.cool(pool, &[page], to)).sum()
    }

    /// Gives up the cached page that is worth least, after it was saved. `None` if all are in use, pinned, or guaranteed to
    /// others than who is asking.
    pub(super) fn give_up_page(&mut self, asking: Option<AccountId>) -> Option<()> {
        self.give_up_page_if(|accounts, owner, bytes| accounts.may_go(owner, bytes, asking))
    }

    /// Gives up pages of an account that has more of them than it may.
    pub(super) fn keep_within_limit(&mut self, account: AccountId) {
        while self.accounts.is_over_limit(account) {
            if self.give_up_page_if(|_, owner, _| owner == account).is_none() {
                break;
            }
        }
    }

    fn give_up_page_if(&mut self, may_go: impl Fn(&Accounts, AccountId, usize) -> bool) -> Option<()> {
        let Self { tree, pages, cached, accounts, .. } = self;
        let evicted = tree.evict(|page| {
            let bytes = pages.memory().page_bytes(pages.memory().format(page));
            let owner = cached[page.0 as usize].map(|cached| cached.account);
            pages.users(page) == 1 && owner.is_some_and(|owner| may_go(accounts, owner, bytes))
        })?;
        self.save_page(evicted);
        self.drop_cached(evicted);
        self.evicted_pages += 1;
        Some(())
    }

    /// Gives up cached pages until there is room for so many hot ones. If giving up all would not do, none is given up.
    pub(super) fn make_room(&mut self, pages: usize, asking: AccountId) -> bool {
        let memory = self.memory();
        let free = memory.bytes_budget().saturating_sub(memory.bytes_in_use());
        if free + self.accounts.spare_bytes(asking) < pages * memory.page_bytes(self.tiers.hot) {
            return false;
        }
        while !self.memory().could_allocate(self.tiers.hot, pages) {
            if self.give_up_page(Some(asking)).is_none() {
                return false;
            }
        }
        true
    }

    /// Hands up to so many pages of cached prefixes to the disk, as far as it takes them without making anybody wait. Tells
    /// how many are left.
    pub fn hand_over(&mut self, count: usize) -> usize {
        for _ in 0..count {
            let Some(page) = self.unsaved.front().copied() else { break };
            if self.cached(page).is_some()
                && self.disk.as_ref().is_some_and(|disk| !disk.has_room(self.page_bytes(page)))
            {
                break;
            }
            self.unsaved.pop_front();
            self.save_page(page);
        }
        self.unsaved.len()
    }

    /// Saves up to so many pages of cached prefixes and waits until they are on disk; tells how many are left.
    pub fn save(&mut self, count: usize) -> usize {
        for _ in 0..count {
            let Some(page) = self.unsaved.pop_front() else { break };
            self.save_page(page);
        }
        self.disk.iter().for_each(DiskTier::flush);
        self.unsaved.len()
    }

    /// Gives the disk a page, unless it left the tree meanwhile.
    fn save_page(&mut self, page: PageId) {
        let Some(Cached { hash, .. }) = self.cached(page) else { return };
        let format = self.memory().format(page);
        if let Some(disk) = &mut self.disk {
            disk.write(hash, format, self.pages.saved(page));
        }
    }
}
