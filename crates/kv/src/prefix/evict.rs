//! Giving pages up: those first that are worth least.
//!
//! The worth of a page is what it would cost to compute it again, as often as it was used, counted from the worth of what
//! was given up last ("greedy dual"): a page that is not used any more is overtaken by all that are.

use ruvllm_kernels::ops::{PAGE_TOKENS, PageId};

use super::key::{Namespace, PageHash};
use super::node::{HashedPage, NodeId};
use super::tree::PrefixTree;

/// The worth of computing a page at the beginning of a text.
const PAGE_WORTH: u64 = 1024;
/// So many tokens further on, attention to all before has doubled it.
const DOUBLING_TOKENS: usize = 2048;
/// More uses than these do not count: what was popular for long must be able to go one day.
const HITS_MAX: u32 = 31;

/// A page that the tree has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    pub page: PageId,
    pub namespace: Namespace,
    pub hash: PageHash,
    /// The hash of the page before, or of the namespace.
    pub before: PageHash,
    pub tokens: Vec<u32>,
}

impl PrefixTree {
    /// Gives up the page that is worth least among the last pages of texts, of those that `may_go`.
    pub fn evict(&mut self, may_go: impl Fn(Namespace, PageId) -> bool) -> Option<Evicted> {
        let last = |id: NodeId| {
            let node = self.node(id);
            node.pages.last().is_some_and(|last| may_go(node.namespace, last.page))
        };
        let (worth, id) = self.leaves.iter().copied().find(|(_, id)| last(*id))?;
        self.floor = self.floor.max(worth);
        let node = self.node(id);
        let namespace = node.namespace;
        let before_edge = || node.parent.map_or(namespace.root(), |parent| self.node(parent).last_hash());
        let before = node.pages.len().checked_sub(2).map_or_else(before_edge, |at| node.pages[at].hash);
        let (HashedPage { page, hash }, tokens) = if node.pages.len() == 1 {
            let node = self.remove(id);
            self.forget_if_empty(namespace);
            (node.pages[0], node.tokens)
        } else {
            self.count(namespace, 0, 1);
            let node = self.node_mut(id);
            let tokens = node.tokens.split_off((node.pages.len() - 1) * PAGE_TOKENS);
            (node.pages.pop().expect("two pages or more"), tokens)
        };
        self.remember_evicted(hash);
        Some(Evicted { page, namespace, hash, before, tokens })
    }

    /// The pages at the ends of texts, from those that are worth least.
    pub fn by_worth(&self) -> impl Iterator<Item = PageId> {
        self.leaves.iter().flat_map(|(_, id)| self.node(*id).pages.iter().rev().map(|held| held.page))
    }

    /// Gives up all pages of a namespace that are not pinned.
    pub fn evict_namespace(&mut self, namespace: Namespace) -> Vec<PageId> {
        let mut pages = Vec::new();
        while let Some(evicted) = self.evict(|of, _| of == namespace) {
            pages.push(evicted.page);
        }
        pages
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
        if node.is_leaf() && !node.is_root() && node.pins == 0 {
            self.leaves.insert((node.worth, id));
        }
    }

    pub(super) fn unqueue(&mut self, id: NodeId) {
        self.leaves.remove(&(self.node(id).worth, id));
    }
}
