//! What each token is: its text, its kind and the bytes that it decodes to.

use crate::vocabulary::TokenKind;

#[derive(Debug)]
pub(crate) struct TokenTable {
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
    /// All tokens' bytes behind each other; `ends[id]` is where token `id` ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenTable {
    /// `decode` appends the bytes of a token that is visible in output; control and unknown tokens have none.
    pub(crate) fn new(texts: Vec<String>, kinds: Vec<TokenKind>, decode: impl Fn(&str, &mut Vec<u8>)) -> Self {
        let mut kinds = kinds;
        kinds.resize(texts.len(), TokenKind::Normal);
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(texts.len());
        for (text, &kind) in texts.iter().zip(&kinds) {
            match kind {
                TokenKind::Control | TokenKind::Unknown => {}
                TokenKind::UserDefined => bytes.extend_from_slice(text.as_bytes()),
                TokenKind::Byte => bytes.extend(crate::vocabulary::byte_token_value(text)),
                TokenKind::Normal | TokenKind::Unused => decode(text, &mut bytes),
            }
            ends.push(bytes.len());
        }
        Self { texts, kinds, bytes, ends }
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Returns the maximum number of bytes that a token stands for, written out or decoded.
    pub(crate) fn longest(&self) -> usize {
        (0..self.len() as u32).map(|id| self.text(id).len().max(self.bytes(id).len())).max().unwrap_or(0)
    }

    /// The empty string for an id outside the vocabulary.
    pub(crate) fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", String::as_str)
    }

    pub(crate) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let Some(&end) = self.ends.get(id as usize) else { return &[] };
        let start = (id as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}
