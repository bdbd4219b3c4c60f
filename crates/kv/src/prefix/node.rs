//! A node of the tree with the edge that leads to it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use ruvllm_runner::{PAGE_TOKENS, PageId, TokenId};

use super::key::{Namespace, PageHash};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(pub u32);

/// The tokens of an edge's first page, in the order of a dictionary: the neighbours of a page are those that share the
/// most tokens with it. Kept in place, because on the way down a tree every pointer costs more than it compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstPage {
    tokens: [TokenId; PAGE_TOKENS],
    len: u8,
}

impl FirstPage {
    /// The first page of these tokens.
    pub(super) fn of(tokens: &[TokenId]) -> Self {
        let len = tokens.len().min(PAGE_TOKENS);
        let mut page = [0; PAGE_TOKENS];
        page[..len].copy_from_slice(&tokens[..len]);
        Self { tokens: page, len: len as u8 }
    }
}

impl Ord for FirstPage {
    fn cmp(&self, other: &Self) -> Ordering {
        // What lies behind a shorter page is zeros, the least token.
        self.tokens.cmp(&other.tokens).then(self.len.cmp(&other.len))
    }
}

impl PartialOrd for FirstPage {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A page with the hash of all tokens up to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HashedPage {
    pub page: PageId,
    pub hash: PageHash,
}

#[derive(Debug)]
pub(super) struct Node {
    /// `None` for the root of a namespace.
    pub parent: Option<NodeId>,
    pub namespace: Namespace,
    /// Tokens before the edge.
    pub depth: usize,
    /// The edge: whole pages, or less than one in a leaf.
    pub tokens: Vec<TokenId>,
    pub pages: Vec<HashedPage>,
    pub children: BTreeMap<FirstPage, NodeId>,
    /// The child that was used last.
    pub latest_child: Option<NodeId>,
    /// Requests that used the edge.
    pub hits: u32,
    /// What it is worth, for eviction.
    pub worth: u64,
}

impl Node {
    pub(super) fn root(namespace: Namespace) -> Self {
        Self {
            parent: None,
            namespace,
            depth: 0,
            tokens: Vec::new(),
            pages: Vec::new(),
            children: BTreeMap::new(),
            latest_child: None,
            hits: 0,
            worth: 0,
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// Whether its page is not filled.
    pub(super) fn is_partial(&self) -> bool {
        !self.tokens.len().is_multiple_of(PAGE_TOKENS)
    }

    pub(super) fn first_page(&self) -> FirstPage {
        FirstPage::of(&self.tokens)
    }

    /// Tokens up to the end of the edge.
    pub(super) fn end(&self) -> usize {
        self.depth + self.tokens.len()
    }

    /// The hash of all up to the end of the edge.
    pub(super) fn last_hash(&self) -> PageHash {
        self.pages.last().map_or(self.namespace.root(), |last| last.hash)
    }
}

/// How many tokens two texts share from their beginnings on.
pub(super) fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
