//! The longest cached beginning of a text.

use ruvllm_runner::{PAGE_TOKENS, PageId, TokenId};

use super::key::{Namespace, PageHash};
use super::node::NodeId;
use super::tree::PrefixTree;

/// Tokens that are shown where a request leaves a cached text.
const SHOWN_TOKENS: usize = 12;

/// What is cached of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Pages that the text fills from its beginning on.
    pub pages: Vec<PageId>,
    /// Their hashes.
    pub hashes: Vec<PageHash>,
    /// The page behind them, if it begins like the text: how many tokens they share. To go on from there it is copied.
    pub partial: Option<(PageId, usize)>,
    /// Where the text leaves what is cached, if that goes on otherwise.
    pub divergence: Option<Divergence>,
    /// The hash of `pages`.
    pub hash: PageHash,
    pub(super) node: Option<NodeId>,
}

impl Found {
    /// Tokens that need not be computed.
    pub fn tokens(&self) -> usize {
        self.pages.len() * PAGE_TOKENS + self.partial.map_or(0, |(_, tokens)| tokens)
    }
}

/// Where a request's text and a cached one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The first token that differs.
    pub at: usize,
    /// What the cached text has there, and what was asked for.
    pub cached: Vec<TokenId>,
    pub asked: Vec<TokenId>,
}

impl Divergence {
    fn new(at: usize, cached: &[TokenId], tokens: &[TokenId]) -> Self {
        let shown = |tokens: &[TokenId]| tokens[..tokens.len().min(SHOWN_TOKENS)].to_vec();
        Self { at, cached: shown(cached), asked: shown(&tokens[at..]) }
    }
}

impl PrefixTree {
    /// Looks for the longest cached beginning of `tokens`. Changes nothing; `used` records that it was used.
    pub fn find(&self, namespace: Namespace, tokens: &[TokenId]) -> Found {
        let mut found = Found {
            pages: Vec::new(),
            hashes: Vec::new(),
            partial: None,
            divergence: None,
            hash: namespace.root(),
            node: None,
        };
        let Some(mut at) = self.roots.get(&namespace).copied() else { return found };
        loop {
            let done = found.pages.len() * PAGE_TOKENS;
            let Some((child, shared)) = self.step_down(at, &tokens[done..]) else {
                found.divergence = self.divergence_behind(at, done, tokens);
                return found;
            };
            let node = self.node(child);
            let whole = shared / PAGE_TOKENS;
            found.node = Some(child);
            found.pages.extend(node.pages[..whole].iter().map(|held| held.page));
            found.hashes.extend(node.pages[..whole].iter().map(|held| held.hash));
            found.hash = whole.checked_sub(1).map_or(found.hash, |last| node.pages[last].hash);
            if shared == node.tokens.len() && !node.is_partial() {
                at = child;
                continue;
            }
            let inside = shared % PAGE_TOKENS;
            found.partial = (inside > 0).then(|| (node.pages[whole].page, inside));
            let is_cached_on = shared < node.tokens.len() && done + shared < tokens.len();
            found.divergence = is_cached_on.then(|| Divergence::new(done + shared, &node.tokens[shared..], tokens));
            return found;
        }
    }

    /// The divergence of a text that goes on behind a node in another way than all of its children. One of them is shown.
    fn divergence_behind(&self, at: NodeId, done: usize, tokens: &[TokenId]) -> Option<Divergence> {
        let node = self.node(at);
        let child = node.latest_child.filter(|_| !node.is_root() && done < tokens.len())?;
        Some(Divergence::new(done, &self.node(child).tokens, tokens))
    }

    /// Records that a request continues from a match, which counts against its eviction.
    /// `found` must come from the tree as it is now.
    pub fn used(&mut self, found: &Found) {
        let mut at = found.node;
        let mut below = None;
        while let Some(id) = at {
            self.unqueue(id);
            let node = self.node_mut(id);
            node.hits = node.hits.saturating_add(1);
            node.latest_child = below.or(node.latest_child);
            at = node.parent;
            self.appraise(id);
            self.queue(id);
            below = Some(id);
        }
    }
}
