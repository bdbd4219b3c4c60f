//! Adapters as the engine sees them: what they are called, from which token on they apply, and what must stay loaded meanwhile.

use std::fmt;
use std::sync::Arc;

use crate::TokenId;

/// A set of low-rank weights that is applied to some rows of a batch, by the digest of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub [u8; 32]);

impl fmt::Display for AdapterId {
    /// In hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The adapter of a sequence's rows in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsAdapter {
    pub id: AdapterId,
    /// Position of the first token that it applies to.
    pub from: usize,
}

/// An adapter that a request uses. It stays loaded while any clone of this lives.
#[derive(Clone)]
pub struct HeldAdapter {
    pub id: AdapterId,
    /// Whether keys and values are others than the model's own. If not, cached prefixes are those of the model.
    pub changes_kv: bool,
    /// Tokens that switch an activated adapter on: it applies from where they begin in a prompt the last time, and to the answer
    /// where they do not occur. `None` is an adapter that applies to all tokens.
    pub invocation: Option<Arc<[TokenId]>>,
    /// Keeps it loaded.
    guard: Arc<dyn Send + Sync>,
}

impl HeldAdapter {
    /// Describes an adapter that is loaded while `guard` lives.
    pub fn new(
        id: AdapterId,
        changes_kv: bool,
        invocation: Option<Arc<[TokenId]>>,
        guard: Arc<dyn Send + Sync>,
    ) -> Self {
        Self { id, changes_kv, invocation, guard }
    }

    /// Returns the first position of a text with this prompt that the adapter applies to. Without invocation tokens in the prompt
    /// that is the row that chooses the first token of the answer.
    pub fn start(&self, prompt: &[TokenId]) -> usize {
        let Some(invocation) = &self.invocation else { return 0 };
        let begins = prompt.windows(invocation.len().max(1)).rposition(|tokens| *tokens == **invocation);
        begins.unwrap_or(prompt.len().saturating_sub(1))
    }
}

impl PartialEq for HeldAdapter {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl fmt::Debug for HeldAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, changes_kv, invocation, guard } = self;
        write!(
            f,
            "HeldAdapter({id}, changes_kv: {changes_kv}, invocation: {invocation:?}, holders: {})",
            Arc::strong_count(guard)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(invocation: Option<&[TokenId]>) -> HeldAdapter {
        HeldAdapter::new(AdapterId([1; 32]), true, invocation.map(Into::into), Arc::new(()))
    }

    #[test]
    fn an_activated_adapter_begins_where_its_invocation_tokens_begin_last() {
        let prompt = [7, 1, 2, 3, 1, 2, 9];
        assert_eq!(held(None).start(&prompt), 0);
        assert_eq!(held(Some(&[1, 2])).start(&prompt), 4);
        assert_eq!(held(Some(&[9])).start(&prompt), 6);
        assert_eq!(held(Some(&[2, 1])).start(&prompt), 6, "with the answer");
        assert_eq!(held(Some(&[])).start(&prompt), 6);
        assert_eq!(held(Some(&[1; 9])).start(&prompt), 6, "longer than the prompt");
    }
}
