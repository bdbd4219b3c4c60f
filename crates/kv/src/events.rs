//! What a listener is told of the cache: enough to know at any time which whole pages it holds.

use ruvllm_runner::{PAGE_TOKENS, TokenId};

use crate::prefix::{Change, Namespace, PageHash, TextNamespaces};

/// A change of the whole pages that are cached. Those that are not filled are not told of: nobody else can use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Pages that follow each other are cached from now on.
    Stored {
        /// Of the text.
        namespace: Namespace,
        /// The namespace that the pages belong to: another one behind the place where an adapter begins.
        root: Namespace,
        /// The page before the first of them; `None` if that is the first of its root.
        parent: Option<PageHash>,
        pages: Vec<PageHash>,
        tokens: Vec<TokenId>,
    },
    /// Pages are not cached any more.
    Removed { pages: Vec<PageHash> },
}

/// What was recorded since it was taken last.
#[derive(Debug, Default)]
pub(crate) struct CacheEvents {
    is_recording: bool,
    recorded: Vec<CacheEvent>,
}

impl CacheEvents {
    pub(crate) fn record(&mut self) {
        self.is_recording = true;
    }

    pub(crate) fn take(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.recorded)
    }

    /// Records the whole pages that an insertion of a text has brought.
    pub(crate) fn stored(&mut self, of: &TextNamespaces, tokens: &[TokenId], change: &Change) {
        if !self.is_recording {
            return;
        }
        for taken in &change.taken {
            let range = taken.number * PAGE_TOKENS..(taken.number + 1) * PAGE_TOKENS;
            let Some(page_tokens) = tokens.get(range) else { continue };
            let page_root = of.root_of(taken.number);
            if let Some(CacheEvent::Stored { root, pages, tokens, .. }) = self.recorded.last_mut()
                && *root == page_root
                && pages.last() == Some(&taken.parent)
            {
                pages.push(taken.hash);
                tokens.extend(page_tokens);
                continue;
            }
            self.recorded.push(CacheEvent::Stored {
                namespace: of.first(),
                root: page_root,
                parent: (taken.parent != page_root.root()).then_some(taken.parent),
                pages: vec![taken.hash],
                tokens: page_tokens.to_vec(),
            });
        }
    }

    pub(crate) fn removed(&mut self, page: PageHash) {
        if !self.is_recording {
            return;
        }
        match self.recorded.last_mut() {
            Some(CacheEvent::Removed { pages }) => pages.push(page),
            _ => self.recorded.push(CacheEvent::Removed { pages: vec![page] }),
        }
    }
}
