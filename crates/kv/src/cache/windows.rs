//! Pages that have left the window of the layers that have one: what these keep of them is given back when memory is short.
//!
//! Not before: a text that parts from a cached one needs the keys and values of all layers before the place where it does.

use ruvllm_runner::{CHUNK_TOKENS, PAGE_TOKENS, PageBytes, PageId, PageLayers};

use super::{KvCache, PageTable};

/// Cached pages that are scanned for some that can be trimmed.
const SCANNED_PAGES_MAX: usize = 1024;

impl KvCache {
    /// Whether some layers of the model attend within a window, and others do not.
    pub fn has_windows(&self) -> bool {
        self.map().shape().windowed_layers > 0
    }

    /// Pages at the end of a text that layers with a window read when it goes on.
    fn pages_in_window(&self) -> usize {
        (self.map().shape().window + CHUNK_TOKENS).div_ceil(PAGE_TOKENS)
    }

    fn is_trimmed(&self, page: PageId) -> bool {
        self.map().format(page).layers == PageLayers::Global
    }

    /// Trims the pages of a running sequence of `tokens` tokens that have left the window, as far as it shares them with
    /// nobody but the cache. Returns how many were trimmed.
    pub fn trim_sequence(&mut self, table: &mut PageTable, tokens: usize, bytes: &mut dyn PageBytes) -> usize {
        let end = self.map().shape().pages_behind_window(tokens).min(table.pages.len());
        let pages = table.pages[table.trimmed_pages.min(end)..end].iter().copied();
        let is_own = |page: &PageId| self.users(*page) as usize == 1 + usize::from(self.cached(*page).is_some());
        let own: Vec<PageId> = pages.filter(|page| is_own(page) && !self.is_trimmed(*page)).collect();
        let trimmed = self.trim_pages(&own, bytes);
        if trimmed == own.len() {
            table.trimmed_pages = end;
        }
        trimmed
    }

    /// Trims up to `count` cached pages that no sequence uses and that are not near the end of their text.
    pub(super) fn trim_cached(&mut self, count: usize, bytes: &mut dyn PageBytes) -> usize {
        if !self.has_windows() {
            return 0;
        }
        let scanned = self.tree.behind_ends(self.pages_in_window()).take(SCANNED_PAGES_MAX);
        let idle = scanned.filter(|page| self.pages.users(*page) == 1 && !self.is_trimmed(*page));
        let chosen: Vec<PageId> = idle.take(count).collect();
        self.trim_pages(&chosen, bytes)
    }

    fn trim_pages(&mut self, pages: &[PageId], bytes: &mut dyn PageBytes) -> usize {
        // The disk has whole pages only.
        pages.iter().for_each(|page| self.save_page(*page, bytes));
        let trimmed = self.shrink(pages, |all| all.trim_windows(pages, bytes));
        self.trimmed_pages += trimmed as u64;
        trimmed
    }

    /// Returns how many of some cached pages, followed by `whole` pages on disk, a sequence can go on from: behind them, all
    /// that is in a window must be there.
    pub(super) fn usable_pages(&self, pages: &[PageId], whole: usize) -> usize {
        let window = self.pages_in_window();
        // Pages in a row, up to and with each, that have not been trimmed.
        let (mut run, mut usable) = (0, 0);
        for index in 0..pages.len() + whole {
            run = if pages.get(index).is_some_and(|page| self.is_trimmed(*page)) { 0 } else { run + 1 };
            if run >= window.min(index + 1) {
                usable = index + 1;
            }
        }
        usable
    }
}
