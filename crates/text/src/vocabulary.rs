//! A vocabulary as a model file describes it, and the checks that make it safe to build a tokenizer from.

use std::collections::HashMap;

/// More tokens than any published vocabulary by a factor of eight; beyond it the file is broken or hostile.
const TOKENS_MAX: usize = 1 << 21;
const MERGES_MAX: usize = 1 << 23;
/// Published vocabularies stay below 1 KiB per token (long runs of spaces or dashes).
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// What a token is for, numbered as GGUF's `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for what the vocabulary cannot express.
    Unknown,
    /// Steers the model (end of turn, role markers); must never come from user text.
    Control,
    /// A literal that is matched before everything else, in user text too.
    UserDefined,
    /// A reserved slot.
    Unused,
    /// One raw byte, written `<0x0A>`.
    Byte,
}

impl TokenKind {
    /// Reads GGUF's number for a kind.
    pub fn from_gguf(number: i32) -> Result<Self, VocabularyError> {
        Ok(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return Err(VocabularyError::UnknownKind { number }),
        })
    }
}

/// Whether special tokens swallow the whitespace that follows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhitespaceAfterSpecial {
    #[default]
    Kept,
    /// Phi-3 was trained this way. GGUF does not record it: the caller knows it from the model's name.
    Swallowed,
}

/// Everything a tokenizer is built from, as plain data; nothing in it is trusted.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// `gpt2` (byte-level BPE), `llama` (SentencePiece) or `gemma4` (BPE over characters).
    pub model: String,
    /// Name of the pre-tokenizer; only BPE models have one.
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    /// One per token; needed by `llama` only, otherwise may be empty.
    pub scores: Vec<f32>,
    /// One per token, or empty when every token is normal.
    pub kinds: Vec<TokenKind>,
    /// `left right`, the most important first; BPE only.
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    /// `None` means what is usual for the model kind.
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub whitespace_after_special: WhitespaceAfterSpecial,
}

/// Why a vocabulary was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum VocabularyError {
    #[error("the vocabulary has no tokens")]
    Empty,
    #[error("the vocabulary has {got} {what}; at most {max} are accepted")]
    TooMany { what: &'static str, got: usize, max: usize },
    #[error("{got} {what} for {expected} tokens: there must be one per token")]
    LengthMismatch { what: &'static str, got: usize, expected: usize },
    #[error("token type {number} is unknown; GGUF defines 1 to 6")]
    UnknownKind { number: i32 },
    #[error("token {id} is {got} bytes long; at most {max} are accepted")]
    TokenTooLong { id: u32, got: usize, max: usize },
    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken { first: u32, second: u32, text: String },
    #[error("the score of token {id} is {score}, which is not a finite number")]
    BadScore { id: u32, score: f32 },
    #[error("the {role} token id {id} is outside the vocabulary of {vocab_size} tokens")]
    IdOutOfRange { role: &'static str, id: u32, vocab_size: usize },
    #[error("merge {index} ({merge:?}) is not of the form \"left right\"")]
    MalformedMerge { index: usize, merge: String },
    #[error("merge {index} ({merge:?}) needs the token {missing:?}, which the vocabulary does not have")]
    MergeOfUnknownToken { index: usize, merge: String, missing: String },
    #[error("merges {first} and {second} are both {merge:?}")]
    DuplicateMerge { first: usize, second: usize, merge: String },
    #[error("byte token {id} has the text {text:?}; expected the form <0x0A>")]
    MalformedByteToken { id: u32, text: String },
}

impl Vocabulary {
    pub(crate) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Normal)
    }

    /// Checks sizes, ids and scores. Afterwards every id fits in `u32` and every parallel list can be indexed by id.
    pub(crate) fn validate(&self) -> Result<(), VocabularyError> {
        self.validate_sizes()?;
        for (id, text) in self.tokens.iter().enumerate() {
            if text.len() > TOKEN_BYTES_MAX {
                return Err(VocabularyError::TokenTooLong { id: id as u32, got: text.len(), max: TOKEN_BYTES_MAX });
            }
            if self.kind(id as u32) == TokenKind::Byte && byte_token_value(text).is_none() {
                return Err(VocabularyError::MalformedByteToken { id: id as u32, text: text.clone() });
            }
        }
        if let Some(id) = self.scores.iter().position(|score| !score.is_finite()) {
            return Err(VocabularyError::BadScore { id: id as u32, score: self.scores[id] });
        }
        let roles = [("bos", self.bos), ("eos", self.eos), ("eot", self.eot), ("unk", self.unk), ("pad", self.pad)];
        for (role, id) in roles {
            if let Some(id) = id.filter(|&id| id as usize >= self.tokens.len()) {
                return Err(VocabularyError::IdOutOfRange { role, id, vocab_size: self.tokens.len() });
            }
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), VocabularyError> {
        if self.tokens.is_empty() {
            return Err(VocabularyError::Empty);
        }
        for (what, got, max) in [("tokens", self.tokens.len(), TOKENS_MAX), ("merges", self.merges.len(), MERGES_MAX)] {
            if got > max {
                return Err(VocabularyError::TooMany { what, got, max });
            }
        }
        let scores_needed = self.model == "llama";
        for (what, got, needed) in [("scores", self.scores.len(), scores_needed), ("kinds", self.kinds.len(), false)] {
            if got != self.tokens.len() && (got != 0 || needed) {
                return Err(VocabularyError::LengthMismatch { what, got, expected: self.tokens.len() });
            }
        }
        Ok(())
    }

    /// Looks tokens up by text. Empty tokens are reserved slots that no text can reach, so they are left out.
    pub(crate) fn ids_by_text(&self) -> Result<HashMap<&str, u32>, VocabularyError> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, text) in self.tokens.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            if let Some(first) = ids.insert(text.as_str(), id as u32) {
                return Err(VocabularyError::DuplicateToken { first, second: id as u32, text: text.clone() });
            }
        }
        Ok(ids)
    }
}

/// The byte that `<0x0A>` stands for.
pub(crate) fn byte_token_value(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` alone would accept a sign.
    let is_hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Vocabulary {
        Vocabulary { model: "gpt2".into(), tokens: vec!["a".into(), "b".into()], ..Default::default() }
    }

    fn check(change: impl FnOnce(&mut Vocabulary), expect: VocabularyError) {
        let mut vocabulary = tiny();
        change(&mut vocabulary);
        let error = vocabulary.validate().and_then(|()| vocabulary.ids_by_text().map(drop)).unwrap_err();
        assert_eq!(error, expect);
    }

    #[test]
    fn hostile_vocabularies_are_refused_with_the_place() {
        check(|v| v.tokens.clear(), VocabularyError::Empty);
        check(
            |v| v.kinds.push(TokenKind::Normal),
            VocabularyError::LengthMismatch { what: "kinds", got: 1, expected: 2 },
        );
        check(|v| v.model = "llama".into(), VocabularyError::LengthMismatch { what: "scores", got: 0, expected: 2 });
        check(|v| v.eos = Some(2), VocabularyError::IdOutOfRange { role: "eos", id: 2, vocab_size: 2 });
        check(|v| v.tokens[1] = "a".into(), VocabularyError::DuplicateToken { first: 0, second: 1, text: "a".into() });
        check(
            |v| v.tokens[1] = "x".repeat(TOKEN_BYTES_MAX + 1),
            VocabularyError::TokenTooLong { id: 1, got: TOKEN_BYTES_MAX + 1, max: TOKEN_BYTES_MAX },
        );
        check(|v| v.scores = vec![0.0, f32::INFINITY], VocabularyError::BadScore { id: 1, score: f32::INFINITY });
        check(
            |v| v.kinds = vec![TokenKind::Byte, TokenKind::Normal],
            VocabularyError::MalformedByteToken { id: 0, text: "a".into() },
        );
    }

    #[test]
    fn byte_tokens_are_read_exactly() {
        assert_eq!(byte_token_value("<0x0A>"), Some(10));
        assert_eq!(byte_token_value("<0xff>"), Some(255));
        for wrong in ["<0x>", "<0x0>", "<0x0AA>", "<0x+1>", "0x0A", "<0xéé>"] {
            assert_eq!(byte_token_value(wrong), None, "{wrong}");
        }
    }
}
