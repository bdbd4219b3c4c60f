//! Giving pages up: those first that are worth least.
//!
//! The worth of a page is what it would cost to compute it again, as often as it was used, counted from the worth of what
//! was given up last ("greedy dual"): a page that is not used any more is overtaken by all that are.

use ruvllm_runner::{PAGE_TOKENS, PageId};

use super::node::{HashedPage, NodeId};
use super::tree::PrefixTree;

/// The worth of computing a page at the beginning of a text.
const PAGE_WORTH: u64 = 1024;
/// So many tokens further on, attention to all before has doubled it.
const DOUBLING_TOKENS: usize = 2048;
/// More uses than these do not count: what was popular for long must be able to go one day.
const HITS_MAX: u32 = 31;

impl PrefixTree {
    /// Gives up the page that is worth least among the last pages of texts, of those that `may_go`.
    pub fn evict(&mut self, may_go: impl Fn(PageId) -> bool) -> Option<PageId> {
        let last = |id: NodeId| self.node(id).pages.last().is_some_and(|last| may_go(last.page));
        let (worth, id) = self.leaves.iter().copied().find(|(_, id)| last(*id))?;
        self.floor = self.floor.max(worth);
        let HashedPage { page, hash } = if self.node(id).pages.len() == 1 {
            let node = self.remove(id);
            self.forget_if_empty(node.namespace);
            node.pages[0]
        } else {
            self.pages -= 1;
            let node = self.node_mut(id);
            node.tokens.truncate((node.pages.len() - 1) * PAGE_TOKENS);
            node.pages.pop().expect("two pages or more")
        };
        self.remember_evicted(hash);
        Some(page)
    }

    /// The pages at the ends of texts, from those that are worth least.
    pub fn by_worth(&self) -> impl Iterator<Item = PageId> {
        self.leaves.iter().flat_map(|(_, id)| self.node(*id).pages.iter().rev().map(|held| held.page))
    }

    /// The pages of texts that are at least `pages` before their ends, from those that are worth least. None before a place
    /// where texts part.
    pub fn behind_ends(&self, pages: usize) -> impl Iterator<Item = PageId> {
        self.leaves.iter().flat_map(move |(_, id)| {
            let held = &self.node(*id).pages;
            held[..held.len().saturating_sub(pages)].iter().map(|held| held.page)
        })
    }

    /// Sets the worth of a node, which must not be queued, to what it is at its present use.
    pub(super) fn appraise(&mut self, id: NodeId) {
        let floor = self.floor;
        let node = self.node_mut(id);
        let cost = PAGE_WORTH + PAGE_WORTH * node.depth as u64 / DOUBLING_TOKENS as u64;
        node.worth = floor + cost * (1 + u64::from(node.hits.min(HITS_MAX)));
    }

    /// Lets a node be evicted, if it is a leaf that nobody keeps.
    pub(super) fn queue(&mut self, id: NodeId) {
        let node = self.node(id);
        if node.is_leaf() && !node.is_root() {
            self.leaves.insert((node.worth, id));
        }
    }

    pub(super) fn unqueue(&mut self, id: NodeId) {
        self.leaves.remove(&(self.node(id).worth, id));
    }
}
