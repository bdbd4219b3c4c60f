//! What a new sequence need not compute.

use std::time::Duration;

use ruvllm_kernels::ops::{PAGE_TOKENS, PageId};

use super::{KvCache, OutOfPages, PageTable};
use crate::accounts::AccountId;
use crate::prefix::{Divergence, Found, Namespace, PageHash};

/// How a sequence begins.
#[derive(Debug, Default)]
pub struct Start {
    /// Pages with the keys and values of the first `tokens` tokens.
    pub table: PageTable,
    pub tokens: usize,
    /// Pages on disk that hold what comes next.
    pub on_disk: Vec<PageHash>,
    /// Where the text leaves a cached one.
    pub divergence: Option<Divergence>,
}

impl KvCache {
    /// Begins a sequence with what is cached of `tokens`, of which the last is left to compute: somebody wants to know
    /// what comes after it. Less than `tokens_min` cached tokens are not used, nor are any if that is none. There must be room
    /// for all tokens and for `spare` pages more; otherwise nothing changes.
    pub fn begin(
        &mut self,
        namespace: Namespace,
        tokens: &[u32],
        tokens_min: Option<usize>,
        spare: usize,
    ) -> Result<Start, OutOfPages> {
        let asking = self.accounts.of(namespace);
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let mut start = Start::default();
        let mut skipped = 0;
        let mut found = tokens_min.map(|_| self.tree.find(namespace, wanted));
        if let (Some(found), Some(tokens_min)) = (&mut found, tokens_min) {
            start.divergence = found.divergence.take();
            start.on_disk = self.on_disk(found, wanted);
            if !self.is_worth_loading(&start.on_disk) {
                skipped = std::mem::take(&mut start.on_disk).len();
            }
            let available = found.tokens().max((found.pages.len() + start.on_disk.len()) * PAGE_TOKENS);
            if available >= tokens_min.max(1) {
                start.table.pages.clone_from(&found.pages);
                start.tokens = found.pages.len() * PAGE_TOKENS;
                (start.table.kept_tokens, start.table.aged_tokens) = (start.tokens, start.tokens);
            } else {
                start.on_disk.clear();
                found.partial = None;
            }
        }
        let needed = Self::pages_for(tokens.len()) - start.table.pages.len() + spare;
        // Held before room is made, so that making room does not take them.
        let partial = found.as_ref().and_then(|found| found.partial).filter(|_| start.on_disk.is_empty());
        let held: Vec<PageId> = start.table.pages.iter().copied().chain(partial.map(|(page, _)| page)).collect();
        held.iter().for_each(|page| self.share(*page));
        if !self.make_room(needed, asking) {
            held.into_iter().for_each(|page| self.release(page));
            return Err(OutOfPages { needed });
        }
        if let Some((page, shared)) = partial {
            if let Some(copy) = self.copy_to_continue(page, asking) {
                start.table.pages.push(copy);
                start.tokens += shared;
            }
            self.release(page);
        }
        if found.is_some() {
            // Looked for again: making room may have changed the tree around it.
            self.tree.used(&self.tree.find(namespace, &wanted[..start.tokens]));
            let cached = start.tokens + start.on_disk.len() * PAGE_TOKENS;
            self.lookups.entry(namespace).or_default().count(tokens.len(), cached, cached + PAGE_TOKENS > wanted.len());
        }
        if let Some(disk) = self.disk.as_mut().filter(|_| skipped > 0) {
            disk.skip(skipped);
        }
        if start.on_disk.is_empty() {
            self.extend(namespace, &mut start.table, tokens.len())?;
        }
        Ok(start)
    }

    /// A page of the sequence's own that begins like `page`. There is none if that is in a format that cannot be continued
    /// token by token, or if there is no room: then its few tokens are computed. The caller holds `page`, lest making room
    /// takes it.
    fn copy_to_continue(&mut self, page: PageId, asking: AccountId) -> Option<PageId> {
        if self.memory().format(page) != self.tiers.hot {
            return None;
        }
        let copy = self.take_page(self.tiers.hot, asking)?;
        self.pages.copy(page, copy);
        Some(copy)
    }

    /// The pages on disk that go on where `found` ends.
    fn on_disk(&self, found: &Found, tokens: &[u32]) -> Vec<PageHash> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let rest = tokens[found.pages.len() * PAGE_TOKENS..].chunks_exact(PAGE_TOKENS);
        let hashes = rest.scan(found.hash, |hash, page| {
            *hash = hash.next(page);
            Some(*hash)
        });
        hashes.take_while(|hash| disk.contains(*hash)).collect()
    }

    /// Tells what computing a token of a prompt takes. From then on pages stay on disk that are computed in less time than
    /// they are read in.
    pub fn set_token_time(&mut self, took: Duration) {
        self.token_time = Some(took);
    }

    fn is_worth_loading(&self, pages: &[PageHash]) -> bool {
        let (Some(disk), Some(token_time)) = (&self.disk, self.token_time) else { return true };
        disk.reads_within(pages, token_time.mul_f64((pages.len() * PAGE_TOKENS) as f64))
    }

    /// Loads a page from disk behind those of `table`, which holds whole pages. Tells whether that went well.
    pub fn load(&mut self, namespace: Namespace, table: &mut PageTable, hash: PageHash) -> bool {
        let Some(saved) = self.disk.as_mut().and_then(|disk| disk.read(hash)) else { return false };
        let Some(page) = self.take_page(saved.format, self.accounts.of(namespace)) else { return false };
        if !self.pages.restore(page, &saved.bytes) {
            self.release(page);
            return false;
        }
        table.pages.push(page);
        true
    }
}
