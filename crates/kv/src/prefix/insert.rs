//! Adding what a request has computed.

use ruvllm_runner::{PAGE_TOKENS, PageId, TokenId};

use super::key::{Namespace, PageHash};
use super::node::{HashedPage, Node, NodeId};
use super::tree::PrefixTree;

/// What an insertion changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Pages that the tree holds from now on, in the order of the text.
    pub taken: Vec<TakenPage>,
    /// Pages that it holds no longer, because fuller ones took their place.
    pub dropped: Vec<PageId>,
}

/// A page of a text that the tree has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenPage {
    pub page: PageId,
    /// Pages of the text before it.
    pub number: usize,
    pub hash: PageHash,
    /// What its hash is chained to: the page before it, or the namespace.
    pub parent: PageHash,
}

impl PrefixTree {
    /// Adds a text whose keys and values are in `pages`, all filled but possibly the last. Where the tree has pages of the
    /// same tokens it keeps its own.
    pub fn insert(&mut self, namespace: Namespace, tokens: &[TokenId], pages: &[PageId]) -> Change {
        assert_eq!(pages.len(), tokens.len().div_ceil(PAGE_TOKENS), "a page for each {PAGE_TOKENS} tokens");
        let mut change = Change::default();
        if tokens.is_empty() {
            return change;
        }
        let mut at = self.root(namespace);
        let mut done = 0;
        while let Some((child, shared)) = self.step_down(at, &tokens[done..]) {
            let whole = shared / PAGE_TOKENS;
            if whole == 0 {
                break;
            }
            done += whole * PAGE_TOKENS;
            at = child;
            if whole < self.node(child).pages.len() {
                // An edge that goes on after the text has ended covers it: no need to cut it.
                if done + shared % PAGE_TOKENS == tokens.len() {
                    return change;
                }
                at = self.split(child, whole);
                break;
            }
        }
        let filled = tokens.len() / PAGE_TOKENS * PAGE_TOKENS;
        if done < filled {
            at = self.add_pages(
                at,
                &tokens[done..filled],
                &pages[done / PAGE_TOKENS..filled / PAGE_TOKENS],
                &mut change,
            );
        }
        if filled < tokens.len() {
            self.add_unfilled(at, &tokens[filled..], pages[filled / PAGE_TOKENS], &mut change);
        }
        change
    }

    fn root(&mut self, namespace: Namespace) -> NodeId {
        if let Some(root) = self.roots.get(&namespace) {
            return *root;
        }
        let root = self.add(Node::root(namespace));
        self.roots.insert(namespace, root);
        root
    }

    /// Adds whole pages behind a node, to its own edge if nothing else goes on there. Gives the node that ends with them.
    fn add_pages(&mut self, at: NodeId, tokens: &[TokenId], pages: &[PageId], change: &mut Change) -> NodeId {
        self.drop_unfilled(at, &tokens[..PAGE_TOKENS], change);
        let (mut hash, mut number) = (self.node(at).last_hash(), self.node(at).end() / PAGE_TOKENS);
        let mut take = |(page, tokens): (&PageId, &[TokenId])| {
            let taken = TakenPage { page: *page, number, hash: hash.next(tokens), parent: hash };
            (hash, number) = (taken.hash, number + 1);
            change.taken.push(taken);
            HashedPage { page: *page, hash }
        };
        let pages: Vec<HashedPage> = pages.iter().zip(tokens.chunks(PAGE_TOKENS)).map(&mut take).collect();
        pages.iter().for_each(|held| self.notice_computed(held.hash));
        self.pages += pages.len();
        let node = self.node_mut(at);
        if node.is_leaf() && !node.is_root() {
            node.tokens.extend(tokens);
            node.pages.extend(pages);
            return at;
        }
        self.add_child(at, tokens, pages)
    }

    /// Adds the unfilled last page of a text behind a node, unless a page there begins with it already.
    fn add_unfilled(&mut self, at: NodeId, tokens: &[TokenId], page: PageId, change: &mut Change) {
        if self.step_down(at, tokens).is_some_and(|(_, shared)| shared == tokens.len()) {
            return;
        }
        self.drop_unfilled(at, tokens, change);
        let parent = self.node(at).last_hash();
        let hash = parent.next(tokens);
        self.pages += 1;
        change.taken.push(TakenPage { page, number: self.node(at).end() / PAGE_TOKENS, hash, parent });
        self.add_child(at, tokens, vec![HashedPage { page, hash }]);
    }

    fn add_child(&mut self, at: NodeId, tokens: &[TokenId], pages: Vec<HashedPage>) -> NodeId {
        self.unqueue(at);
        let parent = self.node(at);
        let child = Node {
            parent: Some(at),
            depth: parent.end(),
            tokens: tokens.to_vec(),
            pages,
            ..Node::root(parent.namespace)
        };
        let first = child.first_page();
        let child = self.add(child);
        let parent = self.node_mut(at);
        parent.children.insert(first, child);
        parent.latest_child = Some(child);
        self.appraise(child);
        self.queue(child);
        child
    }

    /// Drops the unfilled pages behind a node that a new page begins with.
    fn drop_unfilled(&mut self, at: NodeId, page: &[TokenId], change: &mut Change) {
        while let Some((child, shared)) = self.step_down(at, page) {
            let node = self.node(child);
            if !node.is_partial() || node.tokens.len() > shared || node.tokens.len() == page.len() {
                return;
            }
            change.dropped.extend(self.remove(child).pages.iter().map(|held| held.page));
        }
    }
}
