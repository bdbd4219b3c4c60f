//! Making room, and saving what should outlive memory.

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::PageId;

use super::KvCache;

/// Above this share of the budget cached prefixes make room, until less than the other is in use.
const PRESSURE_BEGINS: f64 = 0.85;
const PRESSURE_ENDS: f64 = 0.70;
/// Pages that are cooled, saved or given up between two steps: each takes a fraction of a millisecond, and sequences wait.
const PAGES_BETWEEN_STEPS: usize = 4;
/// Cached pages that are looked at for one that can be cooled.
const LOOKED_AT_MAX: usize = 256;

impl KvCache {
    /// Does a little of what is due, between two steps: relieves pressure, saves pages.
    pub fn maintain(&mut self, pool: &mut Pool) {
        let share = self.memory().bytes_in_use() as f64 / self.memory().bytes_budget() as f64;
        self.is_under_pressure = share > if self.is_under_pressure { PRESSURE_ENDS } else { PRESSURE_BEGINS };
        if self.is_under_pressure {
            let cooled = self.cool_cached(pool, PAGES_BETWEEN_STEPS);
            for _ in cooled..PAGES_BETWEEN_STEPS {
                if self.give_up_page().is_none() {
                    break;
                }
            }
        }
        self.save(PAGES_BETWEEN_STEPS);
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
        let mut cooled = 0;
        for (page, to) in chosen {
            let before = self.page_bytes(page);
            cooled += self.pages.convert(pool, &[page], to);
            self.idle_bytes = self.idle_bytes + self.page_bytes(page) - before;
        }
        self.cooled_pages += cooled as u64;
        cooled
    }

    /// Gives up the cached page that is worth least, after it was saved. `None` if all are in use or pinned.
    pub(super) fn give_up_page(&mut self) -> Option<()> {
        let pages = &self.pages;
        let evicted = self.tree.evict(|_, page| pages.users(page) == 1)?;
        self.save_page(evicted.page);
        self.drop_cached(evicted.page);
        self.evicted_pages += 1;
        Some(())
    }

    /// Gives up cached pages until there is room for so many hot ones. If giving up all would not do, none is given up.
    pub(super) fn make_room(&mut self, pages: usize) -> bool {
        let memory = self.memory();
        let free = memory.bytes_budget() - memory.bytes_in_use();
        if free + self.idle_bytes < pages * memory.page_bytes(self.tiers.hot) {
            return false;
        }
        while !self.memory().could_allocate(self.tiers.hot, pages) {
            if self.give_up_page().is_none() {
                return false;
            }
        }
        true
    }

    /// Saves up to so many pages of cached prefixes; tells how many are left.
    pub fn save(&mut self, count: usize) -> usize {
        for _ in 0..count {
            let Some(page) = self.unsaved.pop_front() else { break };
            self.save_page(page);
        }
        self.unsaved.len()
    }

    fn save_page(&mut self, page: PageId) {
        let Some(hash) = self.hashes[page.0 as usize] else { return };
        let format = self.memory().format(page);
        if let Some(disk) = &mut self.disk
            && let Err(error) = disk.write(hash, format, self.pages.bytes(page))
        {
            tracing::warn!("KV pages are no longer saved to disk: {error}");
            self.disk = None;
        }
    }
}
