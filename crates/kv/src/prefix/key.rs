//! Names of prefixes.

use ruvllm_runner::{PAGE_TOKENS, TokenId};

/// What keys and values were computed with, and for whom. Prefixes of different namespaces never meet: not those of
/// two models, adapters or KV formats, where they would be wrong, nor those of two tenants, where one could learn from the
/// time an answer takes what the other has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(PageHash);

impl Namespace {
    /// The namespace of these parts; parts that differ in any byte or boundary give another one.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm prefix namespace 1");
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(PageHash::of(&hasher))
    }

    /// What the hash of a text's first page is chained to.
    pub fn root(self) -> PageHash {
        self.0
    }
}

/// Names a page by everything that its keys and values depend on: the namespace and all tokens up to its last.
/// Cryptographic, because whoever could make two texts collide would be served with the keys and values of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageHash([u8; 16]);

impl PageHash {
    /// The hash of the page that holds `tokens` behind the page (or namespace) of this hash.
    pub fn next(self, tokens: &[TokenId]) -> Self {
        debug_assert!((1..=PAGE_TOKENS).contains(&tokens.len()));
        let mut bytes = [0; 16 + PAGE_TOKENS * 4];
        bytes[..16].copy_from_slice(&self.0);
        for (to, token) in bytes[16..].chunks_exact_mut(4).zip(tokens) {
            to.copy_from_slice(&token.to_le_bytes());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes[..16 + tokens.len() * 4]);
        Self::of(&hasher)
    }

    /// The name of the recurrent state at the end of this page.
    pub fn of_state(self) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm recurrent state 1");
        hasher.update(&self.0);
        Self::of(&hasher)
    }

    pub fn bytes(self) -> [u8; 16] {
        self.0
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    fn of(hasher: &blake3::Hasher) -> Self {
        let mut half = [0; 16];
        half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(half)
    }
}
