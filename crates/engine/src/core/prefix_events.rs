//! What a listener is told of cached prefixes.

use ruvllm_kv::{CacheEvent, PageHash};
use ruvllm_runner::{AdapterId, TokenId};

use super::Core;
use crate::Tenant;

/// A change of the whole pages that are cached in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixEvent {
    /// Pages that follow each other are cached from now on.
    Stored {
        /// Whose they are; the unnamed one's where tenants share prefixes.
        tenant: Tenant,
        adapter: Option<AdapterId>,
        /// Set behind the place in a text where an adapter begins: names all that comes before.
        salt: Option<PageHash>,
        /// The page before the first of them; `None` if that is the first of its text, or behind its salt.
        parent: Option<PageHash>,
        pages: Vec<PageHash>,
        tokens: Vec<TokenId>,
    },
    /// Pages are not cached any more.
    Removed { pages: Vec<PageHash> },
    /// No page is cached, or nobody knows which: all that was said before is void.
    Cleared,
}

impl Core {
    /// Records from now on what `take_prefix_events` returns. Nothing must be cached yet.
    pub fn record_prefix_events(&mut self) {
        self.cache.record_events();
    }

    /// Returns how cached prefixes have changed since this was called last.
    pub fn take_prefix_events(&mut self) -> Vec<PrefixEvent> {
        let events = self.cache.take_events();
        events.into_iter().map(|event| self.prefix_event(event)).collect()
    }

    fn prefix_event(&self, event: CacheEvent) -> PrefixEvent {
        match event {
            CacheEvent::Stored { namespace, root, parent, pages, tokens } => {
                let (tenant, adapter) = self.tenants.owner(namespace);
                let salt = (root != namespace).then(|| root.root());
                PrefixEvent::Stored { tenant, adapter, salt, parent, pages, tokens }
            }
            CacheEvent::Removed { pages } => PrefixEvent::Removed { pages },
        }
    }
}
