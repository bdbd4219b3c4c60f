//! Following one answer, token by token.

use std::fmt;
use std::sync::Arc;

use llguidance::api::StopReason;

use super::token_trie::TokenTrie;
use crate::tokenizer::Tokenizer;

/// Why an answer cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    #[error("token {token} is not allowed at position {position} of the answer")]
    NotAllowed { token: u32, position: usize },
    #[error("{tokens} tokens cannot be taken back: the answer has {position}")]
    RollbackTooFar { tokens: usize, position: usize },
    /// The vocabulary cannot spell what the grammar wants.
    #[error("no token of the vocabulary can continue the answer at position {position}")]
    DeadEnd { position: usize },
    #[error("the grammar is too complex at position {position} of the answer: {reason}")]
    TooComplex { position: usize, reason: String },
    #[error("the grammar failed at position {position} of the answer: {reason}")]
    Failed { position: usize, reason: String },
}

/// Follows one answer through its grammar.
///
/// After an error other than [`MatchError::NotAllowed`] and [`MatchError::RollbackTooFar`] it is of no further use.
pub struct Matcher {
    inner: llguidance::Matcher,
    trie: Arc<TokenTrie>,
    /// Tokens accepted so far, the one that ended the answer included.
    position: usize,
    /// A token that ends generations was accepted.
    is_ended: bool,
}

/// Goes its own way from where the other is.
impl Clone for Matcher {
    fn clone(&self) -> Self {
        let (inner, trie) = (self.inner.deep_clone(), Arc::clone(&self.trie));
        Self { inner, trie, position: self.position, is_ended: self.is_ended }
    }
}

impl Matcher {
    pub(super) fn new(inner: llguidance::Matcher, trie: Arc<TokenTrie>) -> Self {
        Self { inner, trie, position: 0, is_ended: false }
    }

    fn tokenizer(&self) -> &Tokenizer {
        self.trie.tokenizer()
    }

    /// Writes which tokens may come next: bit `id % 32` of word `id / 32`, as many words as the vocabulary needs.
    /// Where the answer may end, all tokens that end a generation are among them; where it must, only they are.
    pub fn mask(&mut self, allowed: &mut Vec<u32>) -> Result<(), MatchError> {
        let vocab_size = self.tokenizer().vocab_size();
        allowed.clear();
        if self.is_complete() {
            allowed.resize(vocab_size.div_ceil(32), 0);
            for &id in self.tokenizer().end_of_generation() {
                allowed[id as usize / 32] |= 1 << (id % 32);
            }
            return Ok(());
        }
        if !self.trie.can_write(&self.inner.compute_ff_bytes()) {
            return Err(MatchError::DeadEnd { position: self.position });
        }
        let mask = self.inner.compute_mask().map_err(|error| self.describe(&error))?;
        allowed.extend_from_slice(mask.as_slice());
        allowed.resize(vocab_size.div_ceil(32), 0);
        if let (Some(last), used @ 1..) = (allowed.last_mut(), vocab_size % 32) {
            *last &= (1 << used) - 1;
        }
        Ok(())
    }

    /// Goes on by one token. A token that is not allowed changes nothing.
    pub fn accept(&mut self, token: u32) -> Result<(), MatchError> {
        let refused = MatchError::NotAllowed { token, position: self.position };
        if self.is_ended || token as usize >= self.tokenizer().vocab_size() {
            return Err(refused);
        }
        if self.tokenizer().is_end_of_generation(token) {
            if !self.may_end()? {
                return Err(refused);
            }
            self.is_ended = true;
        } else {
            if self.is_complete() || self.validate(&[token])? == 0 {
                return Err(refused);
            }
            self.inner.consume_token(token).map_err(|error| self.describe(&error))?;
        }
        self.position += 1;
        Ok(())
    }

    /// Takes the last tokens back, as if they had not been accepted.
    pub fn rollback(&mut self, tokens: usize) -> Result<(), MatchError> {
        if tokens > self.position {
            return Err(MatchError::RollbackTooFar { tokens, position: self.position });
        }
        let of_the_end = usize::from(self.is_ended && tokens > 0);
        self.inner.rollback(tokens - of_the_end).map_err(|error| self.describe(&error))?;
        self.is_ended &= of_the_end == 0;
        self.position -= tokens;
        Ok(())
    }

    /// Nothing can follow: the answer is over.
    pub fn is_complete(&self) -> bool {
        let reason = self.inner.stop_reason();
        self.is_ended || matches!(reason, StopReason::NoExtension | StopReason::EndOfSentence)
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> Result<bool, MatchError> {
        Ok(self.is_complete() || self.inner.is_accepting().map_err(|error| self.describe(&error))?)
    }

    /// How many of the draft's first tokens the grammar allows. At most one token that ends the answer is counted.
    pub fn count_allowed(&mut self, draft: &[u32]) -> usize {
        if self.is_ended {
            return 0;
        }
        let vocab_size = self.tokenizer().vocab_size();
        let is_text = |&id: &u32| (id as usize) < vocab_size && !self.tokenizer().is_end_of_generation(id);
        let text = draft.iter().take_while(|&id| is_text(id)).count();
        if text == 0 {
            let ends = draft.first().is_some_and(|&id| self.tokenizer().is_end_of_generation(id));
            return usize::from(ends && self.may_end().unwrap_or(false));
        }
        if self.is_complete() { 0 } else { self.validate(&draft[..text]).unwrap_or(0) }
    }

    /// Tokens that must come next, as the tokenizer would write them; possibly none.
    pub fn forced(&mut self) -> Vec<u32> {
        let is_open = !self.is_complete() && self.trie.can_write(&self.inner.compute_ff_bytes());
        if is_open { self.inner.compute_ff_tokens() } else { Vec::new() }
    }

    fn validate(&mut self, tokens: &[u32]) -> Result<usize, MatchError> {
        self.inner.validate_tokens(tokens).map_err(|error| self.describe(&error))
    }

    fn describe(&self, error: &impl fmt::Display) -> MatchError {
        let position = self.position;
        // Behind the first line there may be a backtrace.
        let reason = error.to_string().lines().next().unwrap_or_default().to_owned();
        // llguidance keeps the kind of an error to itself.
        if reason.contains("NoExtension") {
            MatchError::DeadEnd { position }
        } else if ["too many", "Too many", "max is"].iter().any(|limit| reason.contains(limit)) {
            MatchError::TooComplex { position, reason }
        } else {
            MatchError::Failed { position, reason }
        }
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("Matcher")
            .field("position", &self.position)
            .field("is_complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}
