//! The tree and its bookkeeping.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use ruvllm_runner::{PAGE_TOKENS, PageId, TokenId};

use super::key::{Namespace, PageHash};
use super::node::{FirstPage, Node, NodeId, common};

/// Evicted pages that are remembered, to notice when they are computed again.
const REGRETS_MAX: usize = 1 << 16;

/// Knows the pages of all cached prefixes. It counts no references: its owner holds one for each page that the tree
/// says it took, until the tree says that it dropped it.
#[derive(Debug, Default)]
pub struct PrefixTree {
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) unused: Vec<NodeId>,
    pub(super) roots: HashMap<Namespace, NodeId>,
    /// The leaves that may be evicted, by their worth.
    pub(super) leaves: BTreeSet<(u64, NodeId)>,
    /// The worth of what was evicted last: everything that is used later is worth more, so age counts.
    pub(super) floor: u64,
    pub(super) pages: usize,
    evicted: HashSet<PageHash>,
    evicted_order: VecDeque<PageHash>,
    regretted: u64,
}

impl PrefixTree {
    pub fn new() -> Self {
        Self::default()
    }

    /// Pages that the tree holds.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Runs of pages that the tree holds.
    pub fn nodes(&self) -> usize {
        self.nodes.len() - self.unused.len()
    }

    /// Pages that were computed again after they had been evicted: if these are many, the memory is too small for its
    /// load.
    pub fn regretted(&self) -> u64 {
        self.regretted
    }

    /// Bytes of the tree itself, about.
    pub fn bookkeeping_bytes(&self) -> usize {
        /// Tokens and their copy in the parent's order, number and hash.
        const PAGE: usize = PAGE_TOKENS * 4 + size_of::<PageId>() + size_of::<PageHash>();
        /// The node, its place among its parent's children with their keys, and among the leaves.
        const NODE: usize = size_of::<Option<Node>>() + PAGE_TOKENS * 4 + 64;
        self.pages * PAGE + self.nodes() * NODE + self.evicted.len() * 2 * size_of::<PageHash>()
    }

    /// The child of a node that shares the most tokens with `rest`, and how many.
    pub(super) fn step_down(&self, at: NodeId, rest: &[TokenId]) -> Option<(NodeId, usize)> {
        let node = self.node(at);
        let first = FirstPage::of(rest);
        let shared = |child: &NodeId| common(&self.node(*child).tokens, rest);
        if let Some(child) = node.children.get(&first) {
            return Some((*child, shared(child)));
        }
        let before = node.children.range(..first).next_back();
        let after = node.children.range(first..).next();
        let candidates = [before, after].into_iter().flatten().map(|(_, child)| (*child, shared(child)));
        candidates.max_by_key(|(_, shared)| *shared).filter(|(_, shared)| *shared > 0)
    }

    /// Cuts an edge behind its first `whole` pages; gives the new node there.
    pub(super) fn split(&mut self, id: NodeId, whole: usize) -> NodeId {
        let lower = self.node_mut(id);
        debug_assert!((1..lower.pages.len()).contains(&whole));
        let (tokens, pages) = (lower.tokens.split_off(whole * PAGE_TOKENS), lower.pages.split_off(whole));
        let upper = Node {
            children: [(FirstPage::of(&tokens), id)].into(),
            tokens: std::mem::replace(&mut lower.tokens, tokens),
            pages: std::mem::replace(&mut lower.pages, pages),
            latest_child: Some(id),
            ..*lower
        };
        lower.depth = upper.end();
        let (parent, key) = (upper.parent.expect("roots have no edge to cut"), upper.first_page());
        let upper = self.add(upper);
        self.node_mut(id).parent = Some(upper);
        let parent = self.node_mut(parent);
        parent.children.insert(key, upper);
        if parent.latest_child == Some(id) {
            parent.latest_child = Some(upper);
        }
        upper
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize].as_ref().expect("the tree names only nodes that it has")
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize].as_mut().expect("the tree names only nodes that it has")
    }

    pub(super) fn add(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.unused.pop() {
            self.nodes[id.0 as usize] = Some(node);
            return id;
        }
        self.nodes.push(Some(node));
        NodeId(u32::try_from(self.nodes.len() - 1).expect("fewer nodes than pages, and pages have 32-bit numbers"))
    }

    /// Takes a leaf out of the tree.
    pub(super) fn remove(&mut self, id: NodeId) -> Node {
        self.unqueue(id);
        let node = self.nodes[id.0 as usize].take().expect("the tree names only nodes that it has");
        debug_assert!(node.is_leaf());
        self.unused.push(id);
        self.pages -= node.pages.len();
        if let Some(parent_id) = node.parent {
            let parent = self.node_mut(parent_id);
            parent.children.remove(&node.first_page());
            parent.latest_child = parent.latest_child.filter(|latest| *latest != id);
            self.queue(parent_id);
        }
        node
    }

    /// Forgets a namespace that has no pages left.
    pub(super) fn forget_if_empty(&mut self, namespace: Namespace) {
        if let Some(root) = self.roots.get(&namespace).copied().filter(|root| self.node(*root).is_leaf()) {
            self.remove(root);
            self.roots.remove(&namespace);
        }
    }

    pub(super) fn remember_evicted(&mut self, hash: PageHash) {
        if self.evicted.insert(hash) {
            self.evicted_order.push_back(hash);
        }
        if self.evicted_order.len() > REGRETS_MAX
            && let Some(oldest) = self.evicted_order.pop_front()
        {
            self.evicted.remove(&oldest);
        }
    }

    pub(super) fn notice_computed(&mut self, hash: PageHash) {
        self.regretted += u64::from(self.evicted.remove(&hash));
    }
}
