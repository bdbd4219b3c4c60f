//! The key of the pages on disk.

use std::fmt;

use blake3::Hasher;
use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use zeroize::Zeroize;

use crate::prefix::PageHash;

/// Encrypts pages and their names. Keys and values tell what texts they were computed from, and the hash of a text tells
/// whoever can guess it that it was there: neither is on disk as it is.
#[derive(Clone, PartialEq, Eq)]
pub struct PageKey {
    pages: [u8; 32],
    names: [u8; 32],
}

/// What the file of a page is called. Without the key it says nothing, and tells nobody else's pages from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PageName(pub [u8; 16]);

/// Random bytes of a page, stored with it, which give it a key of its own: a page that is written twice is encrypted with two
/// keys, so that none is ever used for two contents.
pub(super) type Salt = [u8; 16];

impl PageKey {
    /// The key of a secret of 256 bits.
    pub fn new(secret: &[u8; 32]) -> Self {
        let derived = |purpose| blake3::derive_key(purpose, secret);
        Self { pages: derived("ruvllm kv page contents 1"), names: derived("ruvllm kv page names 1") }
    }

    pub(super) fn name(&self, hash: PageHash) -> PageName {
        let mut name = [0; 16];
        Hasher::new_keyed(&self.names).update(&hash.bytes()).finalize_xof().fill(&mut name);
        PageName(name)
    }

    pub(super) fn cipher(&self, salt: &Salt) -> LessSafeKey {
        let mut key = *blake3::keyed_hash(&self.pages, salt).as_bytes();
        let cipher = UnboundKey::new(&AES_256_GCM, &key).expect("keys of this cipher have 256 bits");
        key.zeroize();
        LessSafeKey::new(cipher)
    }
}

impl Drop for PageKey {
    fn drop(&mut self) {
        self.pages.zeroize();
        self.names.zeroize();
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageKey(..)")
    }
}
