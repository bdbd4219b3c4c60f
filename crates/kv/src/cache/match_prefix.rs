//! Matching a prompt against the prefix cache.

use std::time::Duration;

use ruvllm_runner::{PAGE_TOKENS, PageBytes, PageId, TokenId};

use super::{KvCache, OutOfPages, PageTable};
use crate::accounts::AccountId;
use crate::prefix::{Divergence, Found, Namespace, PageHash};

/// The cached prefix that a sequence starts from.
#[derive(Debug, Default)]
pub struct PrefixMatch {
    /// Pages with the keys and values of the first `tokens` tokens.
    pub table: PageTable,
    pub tokens: usize,
    /// Pages on disk that hold what comes next.
    pub on_disk: Vec<PageHash>,
    /// Where the text leaves a cached one.
    pub divergence: Option<Divergence>,
}

impl KvCache {
    /// Starts a sequence from the cached prefix of `tokens`. The last token is never matched, because its logits are needed.
    /// A match shorter than `tokens_min` is not used; `None` skips the lookup. Fails without side effects unless all tokens and
    /// `spare` more pages fit.
    pub fn match_prefix(
        &mut self,
        namespace: Namespace,
        tokens: &[TokenId],
        tokens_min: Option<usize>,
        spare: usize,
        bytes: &mut dyn PageBytes,
    ) -> Result<PrefixMatch, OutOfPages> {
        let asking = self.accounts.of(namespace);
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let mut start = PrefixMatch::default();
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
                (start.table.kept_tokens, start.table.demoted_tokens) = (start.tokens, start.tokens);
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
        if !self.make_room(needed, asking, bytes) {
            held.into_iter().for_each(|page| self.release_page(page));
            return Err(OutOfPages { needed });
        }
        if let Some((page, shared)) = partial {
            if let Some(copy) = self.copy_to_continue(page, asking, bytes) {
                start.table.pages.push(copy);
                start.tokens += shared;
            }
            self.release_page(page);
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
            self.extend(namespace, &mut start.table, tokens.len(), bytes)?;
        }
        Ok(start)
    }

    /// A page of the sequence's own that begins like `page`. There is none if that is in a format that cannot be continued
    /// token by token, or if there is no room: then its few tokens are computed. The caller holds `page`, lest making room
    /// takes it.
    fn copy_to_continue(&mut self, page: PageId, asking: AccountId, bytes: &mut dyn PageBytes) -> Option<PageId> {
        if self.map().format(page) != self.tiers.hot {
            return None;
        }
        let copy = self.allocate_page(self.tiers.hot, asking, bytes)?;
        self.pages.copy(page, copy, bytes);
        Some(copy)
    }

    /// The pages on disk that go on where `found` ends.
    fn on_disk(&self, found: &Found, tokens: &[TokenId]) -> Vec<PageHash> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let rest = tokens[found.pages.len() * PAGE_TOKENS..].chunks_exact(PAGE_TOKENS);
        let hashes = rest.scan(found.hash, |hash, page| {
            *hash = hash.next(page);
            Some(*hash)
        });
        hashes.take_while(|hash| disk.contains(*hash)).collect()
    }

    /// Sets the time that computing a prompt token takes. From then on, pages that are faster to compute than to read stay on
    /// disk.
    pub fn set_token_time(&mut self, took: Duration) {
        self.token_time = Some(took);
    }

    fn is_worth_loading(&self, pages: &[PageHash]) -> bool {
        let (Some(disk), Some(token_time)) = (&self.disk, self.token_time) else { return true };
        disk.reads_within(pages, token_time.mul_f64((pages.len() * PAGE_TOKENS) as f64))
    }

    /// Loads a page from disk and appends it to `table`, which holds whole pages. Returns whether it could be loaded.
    pub fn load(
        &mut self,
        namespace: Namespace,
        table: &mut PageTable,
        hash: PageHash,
        bytes: &mut dyn PageBytes,
    ) -> bool {
        let Some(saved) = self.disk.as_mut().and_then(|disk| disk.read(hash)) else { return false };
        let Some(page) = self.allocate_page(saved.format, self.accounts.of(namespace), bytes) else { return false };
        if !self.pages.restore(page, &saved.bytes, bytes) {
            self.release_page(page);
            return false;
        }
        table.pages.push(page);
        true
    }
}
