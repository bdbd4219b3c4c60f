//! Matching a prompt against the prefix cache.

use std::time::Duration;

use ruvllm_runner::{PAGE_TOKENS, PageBytes, PageId, TokenId};

use super::snapshots::StateSource;
use super::{KvCache, OutOfPages, PageTable};
use crate::accounts::AccountId;
use crate::prefix::{Divergence, Found, Namespace, PageHash, TextNamespaces};

/// The cached prefix that a sequence starts from.
#[derive(Debug, Default)]
pub struct PrefixMatch {
    /// Pages with the keys and values of the first `tokens` tokens.
    pub table: PageTable,
    pub tokens: usize,
    /// Pages on disk that hold what comes next.
    pub on_disk: Vec<PageHash>,
    /// Tokens of the pages that are there, in memory or on disk: more than can be used where the recurrent state at their end is not.
    pub known_tokens: usize,
    /// Where the text leaves a cached one.
    pub divergence: Option<Divergence>,
}

/// Where the state behind the first `tokens` tokens is.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    hash: PageHash,
    tokens: usize,
    source: StateSource,
}

impl KvCache {
    /// Starts a sequence from the cached prefix of `tokens`. The last token is never matched, because its logits are needed.
    /// A match shorter than `tokens_min` is not used; `None` skips the lookup. Fails without side effects unless all tokens and
    /// `spare` more pages fit.
    pub fn match_prefix(
        &mut self,
        namespaces: impl Into<TextNamespaces>,
        tokens: &[TokenId],
        tokens_min: Option<usize>,
        spare: usize,
        bytes: &mut dyn PageBytes,
    ) -> Result<PrefixMatch, OutOfPages> {
        let namespaces = namespaces.into();
        let namespace = namespaces.first();
        let asking = self.accounts.of(namespace);
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let mut start = PrefixMatch::default();
        let mut skipped = 0;
        let mut snapshot = None;
        let mut found = tokens_min.map(|_| self.tree.find_text(&namespaces, wanted));
        if let (Some(found), Some(tokens_min)) = (&mut found, tokens_min) {
            start.divergence = found.divergence.take();
            start.on_disk = self.on_disk(&namespaces, found, wanted);
            self.cut_to_window(found, &mut start.on_disk);
            start.known_tokens = (found.pages.len() + start.on_disk.len()) * PAGE_TOKENS;
            snapshot = self.cut_to_snapshot(found, &mut start.on_disk);
            if !self.is_worth_loading(&start.on_disk) {
                skipped = std::mem::take(&mut start.on_disk).len();
                self.cut_to_window(found, &mut start.on_disk);
                snapshot = self.cut_to_snapshot(found, &mut start.on_disk);
            }
            let available = found.tokens().max((found.pages.len() + start.on_disk.len()) * PAGE_TOKENS);
            if available >= tokens_min.max(1) {
                start.table.pages.clone_from(&found.pages);
                start.tokens = found.pages.len() * PAGE_TOKENS;
                (start.table.kept_tokens, start.table.demoted_tokens) = (start.tokens, start.tokens);
            } else {
                start.on_disk.clear();
                found.partial = None;
                snapshot = None;
            }
        }
        let needed = Self::pages_for(tokens.len()) - start.table.pages.len() + spare;
        // Held before room is made, so that making room does not take them.
        let partial = found.as_ref().and_then(|found| found.partial).filter(|_| start.on_disk.is_empty());
        let held: Vec<PageId> = start.table.pages.iter().copied().chain(partial.map(|(page, _)| page)).collect();
        held.iter().for_each(|page| self.share(*page));
        if !self.make_room(needed, asking, bytes) || self.begin_state(&mut start.table, bytes).is_err() {
            held.into_iter().for_each(|page| self.release_page(page));
            return Err(OutOfPages { needed });
        }
        if !self.restore_snapshot(snapshot, &start.table, bytes) {
            held.into_iter().for_each(|page| self.release_page(page));
            start.table.pages.clear();
            self.release(None, &[], start.table, bytes);
            return self.match_prefix(namespaces, tokens, None, spare, bytes);
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
            self.tree.used_text(&namespaces, &wanted[..start.tokens]);
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

    /// Shortens a match to where all is there that layers with a window read, of models that have them.
    fn cut_to_window(&self, found: &mut Found, on_disk: &mut Vec<PageHash>) {
        if !self.has_windows() {
            return;
        }
        let usable = self.usable_pages(&found.pages, on_disk.len());
        if usable < found.pages.len() {
            found.partial = None;
            found.pages.truncate(usable);
            found.hashes.truncate(usable);
        }
        on_disk.truncate(usable - found.pages.len());
    }

    /// Shortens a match to the last page at whose end there is a snapshot of the recurrent state, of models that have one:
    /// a sequence can only go on from there.
    fn cut_to_snapshot(&self, found: &mut Found, on_disk: &mut Vec<PageHash>) -> Option<Snapshot> {
        if !self.has_states() {
            return None;
        }
        let hashes: Vec<PageHash> = found.hashes.iter().chain(&*on_disk).copied().collect();
        let last = self.last_snapshot(&hashes);
        let pages = last.map_or(0, |(pages, _)| pages);
        found.partial = None;
        found.pages.truncate(pages);
        found.hashes.truncate(pages);
        on_disk.truncate(pages - found.pages.len());
        last.map(|(pages, source)| Snapshot { hash: hashes[pages - 1], tokens: pages * PAGE_TOKENS, source })
    }

    /// Puts a snapshot into the state of a new sequence. Returns whether that can go on from there.
    fn restore_snapshot(&mut self, snapshot: Option<Snapshot>, table: &PageTable, bytes: &mut dyn PageBytes) -> bool {
        let (Some(Snapshot { hash, tokens, source }), Some(slot)) = (snapshot, table.state) else { return true };
        self.restore_state(hash, tokens, source, slot, bytes)
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
    fn on_disk(&self, of: &TextNamespaces, found: &Found, tokens: &[TokenId]) -> Vec<PageHash> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let rest = tokens.chunks_exact(PAGE_TOKENS).enumerate().skip(found.pages.len());
        let hashes = rest.scan(found.hash, |hash, (number, page)| {
            *hash = of.chain(number, *hash).next(page);
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
        // A state is saved under another name.
        let Some(format) = saved.format else { return false };
        let Some(page) = self.allocate_page(format, self.accounts.of(namespace), bytes) else { return false };
        if !self.pages.restore(page, &saved.bytes, bytes) {
            self.release_page(page);
            return false;
        }
        table.pages.push(page);
        true
    }
}
