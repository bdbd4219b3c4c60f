//! Somebody who is told of cached prefixes.

use std::collections::HashSet;

use ruvllm_kv::PageHash;
use ruvllm_runner::PAGE_TOKENS;

use super::super::Core;
use crate::PrefixEvent;

/// The pages that are cached, by what was told of them.
#[derive(Debug, Default)]
pub struct Told {
    pages: HashSet<PageHash>,
    /// How many were stored so far.
    pub stored: usize,
}

impl Told {
    /// Listens, and checks that what is told makes sense, and that it is all.
    pub fn listen(&mut self, core: &mut Core) {
        for event in core.take_prefix_events() {
            match event {
                PrefixEvent::Stored { tenant, salt, parent, pages, tokens, .. } => {
                    assert!(["a/x", "b", "c"].contains(&tenant.name()), "{tenant:?}");
                    assert_eq!(tokens.len(), pages.len() * PAGE_TOKENS);
                    assert!(parent.is_none_or(|parent| self.pages.contains(&parent)), "a page without its parent");
                    // The hash that a text without parent or salt begins with is the namespace's own affair.
                    let chained_to = [parent.or(salt)].into_iter().chain(pages.iter().map(|page| Some(*page)));
                    for ((page, tokens), before) in pages.iter().zip(tokens.chunks(PAGE_TOKENS)).zip(chained_to) {
                        assert!(before.is_none_or(|before| before.next(tokens) == *page), "{page:?} has other tokens");
                        assert!(self.pages.insert(*page), "{page:?} is stored twice");
                    }
                    self.stored += pages.len();
                }
                PrefixEvent::Removed { pages } => {
                    assert!(pages.iter().all(|page| self.pages.remove(page)), "{pages:?} were not all there");
                }
                PrefixEvent::Cleared => self.pages.clear(),
            }
        }
        let cached: HashSet<PageHash> = core.cache.whole_pages().collect();
        assert_eq!(self.pages, cached);
    }
}
