//! The tree against a list of all texts that were inserted.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use ruvllm_runner::{PAGE_TOKENS, PageId};

use super::node::common;
use super::*;

fn namespace(name: &str) -> Namespace {
    Namespace::of(&[name.as_bytes()])
}

/// Inserts texts with pages of their own, and knows which tokens each page stands for.
#[derive(Default)]
struct Owner {
    tree: PrefixTree,
    next_page: u32,
    held: HashMap<PageId, (Namespace, Vec<u32>)>,
}

impl Owner {
    fn insert(&mut self, namespace: Namespace, tokens: &[u32]) -> Change {
        let count = tokens.len().div_ceil(PAGE_TOKENS);
        let pages: Vec<PageId> = (0..count).map(|i| PageId(self.next_page + i as u32)).collect();
        self.next_page += count as u32;
        let change = self.tree.insert(namespace, tokens, &pages);
        for page in &change.dropped {
            self.held.remove(page).expect("only pages that the tree held are dropped");
        }
        for TakenPage { page, number, hash, parent } in &change.taken {
            let at = pages.iter().position(|own| own == page).expect("only pages that were offered are taken");
            assert_eq!(*number, at);
            let end = tokens.len().min((at + 1) * PAGE_TOKENS);
            let hash_of = |tokens: &[u32]| tokens.chunks(PAGE_TOKENS).fold(namespace.root(), PageHash::next);
            assert_eq!((*hash, *parent), (hash_of(&tokens[..end]), hash_of(&tokens[..at * PAGE_TOKENS])));
            assert!(self.held.insert(*page, (namespace, tokens[..end].to_vec())).is_none());
        }
        change
    }

    /// Gives up a page; tells which tokens led up to its end.
    fn evict(&mut self) -> Option<Vec<u32>> {
        let page = self.tree.evict(|_| true)?;
        let (_, tokens) = self.held.remove(&page).expect("it was held");
        Some(tokens)
    }

    /// The most tokens that any held page and its predecessors share with `tokens`. A page without its predecessors would
    /// be of no use, and the tree must not have one.
    fn longest(&self, namespace: Namespace, tokens: &[u32]) -> usize {
        let of = self.held.values().filter(|(of, _)| *of == namespace);
        of.map(|(_, held)| common(held, tokens)).max().unwrap_or(0)
    }

    fn check(&self, namespace: Namespace, tokens: &[u32]) {
        let found = self.tree.find(namespace, tokens);
        assert_eq!(found.tokens(), self.longest(namespace, tokens));
        for (i, page) in found.pages.iter().enumerate() {
            assert_eq!(self.held[page], (namespace, tokens[..(i + 1) * PAGE_TOKENS].to_vec()));
        }
        if let Some((page, shared)) = found.partial {
            let done = found.pages.len() * PAGE_TOKENS;
            assert_eq!(self.held[&page].1[..done + shared], tokens[..done + shared]);
        }
        let filled = &tokens[..found.pages.len() * PAGE_TOKENS];
        assert_eq!(found.hash, filled.chunks(PAGE_TOKENS).fold(namespace.root(), PageHash::next));
        if let Some(divergence) = &found.divergence {
            assert_eq!(divergence.at, found.tokens());
            assert_ne!(divergence.cached[0], tokens[divergence.at]);
        }
        assert_eq!(self.tree.pages(), self.held.len());
        let distinct: HashSet<_> = self.held.values().collect();
        assert_eq!(distinct.len(), self.held.len(), "the same tokens are held once");
    }
}

/// Texts that share beginnings of all lengths: few letters, and long runs of the same.
fn text() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec((0u32..2, 1usize..24), 1..8)
        .prop_map(|runs| runs.into_iter().flat_map(|(token, count)| std::iter::repeat_n(token, count)).collect())
}

proptest! {
    #[test]
    fn finds_what_was_inserted_and_not_evicted(steps in prop::collection::vec((text(), 0usize..2, 0usize..4), 1..40)) {
        let mut owner = Owner::default();
        for (tokens, of, evictions) in steps {
            let namespace = namespace(["a", "b"][of]);
            owner.check(namespace, &tokens);
            owner.insert(namespace, &tokens);
            owner.check(namespace, &tokens);
            prop_assert_eq!(owner.tree.find(namespace, &tokens).tokens(), tokens.len());
            let found = owner.tree.find(namespace, &tokens);
            owner.tree.used(&found);
            for _ in 0..evictions {
                owner.evict();
            }
            owner.check(namespace, &tokens);
        }
        while owner.evict().is_some() {}
        prop_assert_eq!((owner.tree.pages(), owner.tree.nodes(), owner.held.len()), (0, 0, 0));
    }
}

#[test]
fn a_text_that_goes_on_replaces_its_unfilled_page() {
    let mut owner = Owner::default();
    let tokens: Vec<u32> = (0..40).collect();
    let taken = |change: &Change| change.taken.iter().map(|taken| taken.page).collect::<Vec<_>>();
    assert_eq!(taken(&owner.insert(namespace("a"), &tokens[..20])), [PageId(0), PageId(1)]);
    let change = owner.insert(namespace("a"), &tokens);
    assert_eq!((taken(&change), change.dropped), (vec![PageId(3), PageId(4)], vec![PageId(1)]));
    assert_eq!(owner.tree.find(namespace("a"), &tokens).pages, [PageId(0), PageId(3)]);
}

#[test]
fn tells_where_a_text_leaves_the_cached_one() {
    let mut owner = Owner::default();
    let cached: Vec<u32> = (0..64).collect();
    owner.insert(namespace("a"), &cached);
    let mut asked = cached.clone();
    asked[37] = 1000;
    let found = owner.tree.find(namespace("a"), &asked);
    assert_eq!((found.pages.len(), found.partial), (2, Some((PageId(2), 5))));
    let asked = asked[37..49].to_vec();
    assert_eq!(found.divergence, Some(Divergence { at: 37, cached: (37..49).collect(), asked }));
    // The end of the request or of the cached text is no divergence, nor is a text that never had anything in common.
    assert_eq!(owner.tree.find(namespace("a"), &cached[..37]).divergence, None);
    let longer: Vec<u32> = (0..80).collect();
    assert_eq!(owner.tree.find(namespace("a"), &longer).divergence, None);
    assert_eq!(owner.tree.find(namespace("a"), &[7, 8, 9]).divergence, None);
    // At the end of a page, the text that was used last is shown.
    let mut asked = longer.clone();
    asked[64] = 1;
    owner.insert(namespace("a"), &longer);
    owner.insert(namespace("a"), &cached);
    assert_eq!(owner.tree.find(namespace("a"), &asked).divergence.map(|divergence| divergence.at), Some(64));
}

#[test]
fn namespaces_do_not_share() {
    let mut owner = Owner::default();
    let tokens: Vec<u32> = (0..32).collect();
    owner.insert(namespace("a"), &tokens);
    assert_eq!(owner.tree.find(namespace("b"), &tokens).tokens(), 0);
    assert_ne!(Namespace::of(&[b"ab", b"c"]), Namespace::of(&[b"a", b"bc"]));
}

#[test]
fn what_is_used_stays_longer_and_what_is_not_goes_in_the_end() {
    let mut owner = Owner::default();
    let text = |first: u32| (first..first + 32).collect::<Vec<u32>>();
    owner.insert(namespace("a"), &text(0));
    owner.insert(namespace("a"), &text(1000));
    for _ in 0..3 {
        let found = owner.tree.find(namespace("a"), &text(0));
        owner.tree.used(&found);
    }
    assert_eq!(owner.evict(), Some(text(1000)));
    // Unused from now on, while others come and go.
    for i in 2..100 {
        owner.insert(namespace("a"), &text(i * 1000));
        owner.evict();
        owner.evict();
    }
    assert_eq!(owner.tree.find(namespace("a"), &text(0)).tokens(), 0);
}

#[test]
fn counts_what_is_computed_again_after_its_eviction() {
    let mut owner = Owner::default();
    let tokens: Vec<u32> = (0..48).collect();
    owner.insert(namespace("a"), &tokens);
    owner.evict();
    owner.evict();
    assert_eq!(owner.tree.regretted(), 0);
    owner.insert(namespace("a"), &tokens);
    assert_eq!(owner.tree.regretted(), 2);
}
