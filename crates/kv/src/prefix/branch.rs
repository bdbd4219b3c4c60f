//! Texts whose pages belong to one namespace up to some page, and to another from there on: those with an adapter that begins
//! within the text. What comes before it is shared with all texts of the first namespace.

use ruvllm_runner::{PAGE_TOKENS, PageId, TokenId};

use super::key::{Namespace, PageHash};
use super::tree::PrefixTree;
use super::{Change, Divergence, Found, TakenPage};

/// The namespaces that the pages of a text belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextNamespaces {
    /// That of the first page.
    first: Namespace,
    branch: Option<Branch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Branch {
    /// Tokens of the pages before it.
    tokens: usize,
    /// Tokens of the text that are as in the first namespace. The last of them may begin a page of the other.
    before: usize,
    namespace: Namespace,
}

impl TextNamespaces {
    /// Lets a text whose keys and values are those of `first` for the tokens `before` leave it behind the last whole page of
    /// these, for a namespace of these parts. That depends on the tokens of the pages before it: pages of two texts are the same
    /// only if all tokens up to them are.
    pub fn branching(first: Namespace, before: &[TokenId], parts: &[&[u8]]) -> Self {
        let pages = before.chunks_exact(PAGE_TOKENS);
        let tokens = before.len() - pages.remainder().len();
        let hash = pages.fold(first.root(), PageHash::next).bytes();
        let parts: Vec<&[u8]> = [b"branch".as_slice(), &hash].into_iter().chain(parts.iter().copied()).collect();
        Self { first, branch: Some(Branch { tokens, before: before.len(), namespace: Namespace::of(&parts) }) }
    }

    pub fn first(&self) -> Namespace {
        self.first
    }

    /// Returns how many tokens two texts can share that have their first `tokens` tokens in common.
    pub fn shared_tokens(&self, other: &Self, tokens: usize) -> usize {
        if self.first != other.first {
            return 0;
        }
        if self.branch == other.branch {
            return tokens;
        }
        let before = self.branch.iter().chain(&other.branch).map(|branch| branch.tokens).min();
        before.map_or(tokens, |before| tokens.min(before))
    }

    /// Returns the namespace that a page belongs to.
    pub(crate) fn root_of(&self, page: usize) -> Namespace {
        let branch = self.branch.filter(|branch| page * PAGE_TOKENS >= branch.tokens);
        branch.map_or(self.first, |branch| branch.namespace)
    }

    /// Returns the hash that the hash of a page is chained to, given that of the page before.
    pub(crate) fn chain(&self, page: usize, before: PageHash) -> PageHash {
        match self.branch {
            Some(Branch { tokens, namespace, .. }) if page * PAGE_TOKENS == tokens => namespace.root(),
            _ => before,
        }
    }
}

impl From<Namespace> for TextNamespaces {
    fn from(first: Namespace) -> Self {
        Self { first, branch: None }
    }
}

impl PrefixTree {
    /// Looks for the longest cached beginning of a text, in both namespaces if it has two. The page that is the second's first may
    /// begin like one of the first.
    pub fn find_text(&self, of: &TextNamespaces, tokens: &[TokenId]) -> Found {
        let Some(branch) = of.branch.filter(|branch| branch.tokens < tokens.len()) else {
            return self.find(of.first, tokens);
        };
        let first = self.find(of.first, &tokens[..branch.before.min(tokens.len())]);
        if first.pages.len() * PAGE_TOKENS < branch.tokens {
            return first;
        }
        let rest = self.find(branch.namespace, &tokens[branch.tokens..]);
        let begun = first.partial.filter(|_| rest.pages.is_empty());
        let divergence = rest.divergence.map(|one| Divergence { at: one.at + branch.tokens, ..one });
        Found {
            pages: [first.pages, rest.pages].concat(),
            hashes: [first.hashes, rest.hashes].concat(),
            partial: rest.partial.into_iter().chain(begun).max_by_key(|(_, tokens)| *tokens),
            divergence,
            ..rest
        }
    }

    /// Records that a request continues from the cached beginning `tokens` of a text.
    pub fn used_text(&mut self, of: &TextNamespaces, tokens: &[TokenId]) {
        let before = of.branch.map_or(tokens.len(), |branch| branch.tokens.min(tokens.len()));
        self.used(&self.find(of.first, &tokens[..before]));
        if let Some(branch) = of.branch.filter(|_| before < tokens.len()) {
            self.used(&self.find(branch.namespace, &tokens[before..]));
        }
    }

    /// Adds a text whose keys and values are in `pages`, all filled but possibly the last, each page to its namespace.
    pub fn insert_text(&mut self, of: &TextNamespaces, tokens: &[TokenId], pages: &[PageId]) -> Change {
        let Some(Branch { tokens: before, namespace, .. }) = of.branch.filter(|branch| branch.tokens < tokens.len())
        else {
            return self.insert(of.first, tokens, pages);
        };
        let mut change = self.insert(of.first, &tokens[..before], &pages[..before / PAGE_TOKENS]);
        let before_pages = before / PAGE_TOKENS;
        let rest = self.insert(namespace, &tokens[before..], &pages[before_pages..]);
        change
            .taken
            .extend(rest.taken.into_iter().map(|taken| TakenPage { number: taken.number + before_pages, ..taken }));
        change.dropped.extend(rest.dropped);
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(range: std::ops::Range<u32>) -> Vec<PageId> {
        range.map(PageId).collect()
    }

    #[test]
    fn texts_that_branch_share_what_comes_before_and_nothing_after() {
        let base = Namespace::of(&[b"base"]);
        let tokens: Vec<TokenId> = (0..40).collect();
        let [one, other] =
            [b"one".as_slice(), b"other"].map(|id| TextNamespaces::branching(base, &tokens[..16], &[id]));
        let mut tree = PrefixTree::new();
        assert_eq!(tree.insert_text(&one, &tokens, &pages(0..3)).taken.len(), 3);
        assert_eq!(tree.find_text(&one, &tokens).pages, pages(0..2));
        assert_eq!(tree.find_text(&one, &tokens).partial, Some((PageId(2), 8)));
        assert_eq!(tree.find_text(&other, &tokens).pages, pages(0..1));
        assert_eq!(tree.find(base, &tokens).pages, pages(0..1));
        assert_eq!((tree.find_text(&other, &tokens).partial, tree.find(base, &tokens).partial), (None, None));
        // The other's own pages do not replace them.
        assert_eq!(tree.insert_text(&other, &tokens, &[PageId(0), PageId(7), PageId(8)]).taken.len(), 2);
        assert_eq!(tree.find_text(&one, &tokens).pages, pages(0..2));
        assert_eq!((one.shared_tokens(&other, 40), one.shared_tokens(&one, 40)), (16, 40));
        assert_eq!(TextNamespaces::from(base).shared_tokens(&one, 40), 16);
    }

    #[test]
    fn the_page_of_a_branch_begins_like_one_of_the_model() {
        let base = Namespace::of(&[b"base"]);
        let tokens: Vec<TokenId> = (0..40).collect();
        let mut tree = PrefixTree::new();
        tree.insert(base, &tokens[..30], &pages(0..2));
        let one = TextNamespaces::branching(base, &tokens[..21], &[b"one"]);
        let found = tree.find_text(&one, &tokens);
        assert_eq!((found.pages, found.partial), (pages(0..1), Some((PageId(1), 5))), "and not a token more");
        // What is its own holds more.
        tree.insert_text(&one, &tokens[..29], &[PageId(0), PageId(7)]);
        assert_eq!(tree.find_text(&one, &tokens).partial, Some((PageId(7), 13)));
        tree.insert_text(&one, &tokens, &[PageId(0), PageId(8), PageId(9)]);
        let found = tree.find_text(&one, &tokens);
        assert_eq!((found.pages, found.partial), (vec![PageId(0), PageId(8)], Some((PageId(9), 8))));
    }

    #[test]
    fn the_namespace_behind_a_branch_depends_on_the_tokens_before_it() {
        let base = Namespace::of(&[b"base"]);
        let (tokens, mut otherwise): (Vec<TokenId>, Vec<TokenId>) = ((0..16).collect(), (0..16).collect());
        otherwise[3] = 99;
        let of = |tokens: &[TokenId]| TextNamespaces::branching(base, tokens, &[b"one"]);
        assert_ne!(of(&tokens), of(&otherwise));
        assert_ne!(of(&tokens), of(&[]));
        assert_eq!(of(&tokens), of(&tokens));
    }
}
