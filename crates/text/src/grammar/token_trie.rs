//! The vocabulary as llguidance wants it: a trie of the bytes of all tokens that are text.
//!
//! Control tokens, tokens that end a generation and whatever else only trusted text may contain have no bytes here:
//! no grammar can match them, by name or by spelling.

use std::collections::HashSet;
use std::sync::Arc;

use toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::GrammarError;
use super::limits::FORCED_BYTES_MAX;
use crate::tokenizer::{SpecialTokens, Tokenizer};

/// The trie numbers its nodes with 22 bits, and has at most one node per byte.
const VOCABULARY_BYTES_MAX: usize = (1 << 22) - 1;
/// The trie's depth has 10 bits. Longer tokens (runs of spaces) are left out; shorter ones can do what they do.
const TOKEN_BYTES_MAX: usize = 512;

pub(super) struct TokenTrie {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    /// Whether there is a token for each single byte. Some vocabularies lack rare ones.
    has_byte: [bool; 256],
}

impl TokenTrie {
    /// Whether a trie can be built at all; cheap.
    pub(super) fn check(tokenizer: &Tokenizer) -> Result<(), GrammarError> {
        let bytes: usize = (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_bytes(id).len()).sum();
        if bytes > VOCABULARY_BYTES_MAX {
            return Err(GrammarError::VocabularyTooLarge { got: bytes, max: VOCABULARY_BYTES_MAX });
        }
        Ok(())
    }

    pub(super) fn new(tokenizer: &Arc<Tokenizer>) -> Self {
        let trusted: HashSet<&str> = tokenizer.trusted_texts().collect();
        let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32)
            .map(|id| {
                let bytes = tokenizer.token_bytes(id);
                let is_text = !tokenizer.is_control(id)
                    && !tokenizer.is_end_of_generation(id)
                    && !trusted.contains(tokenizer.token_text(id))
                    && bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER)
                    && bytes.len() <= TOKEN_BYTES_MAX;
                if is_text { bytes.to_vec() } else { Vec::new() }
            })
            .collect();
        let mut has_byte = [false; 256];
        for word in &words {
            if let [byte] = word[..] {
                has_byte[usize::from(byte)] = true;
            }
        }
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let mut trie = TokTrie::from(&info, &words);
        if !tokenizer.end_of_generation().is_empty() {
            trie = trie.with_eos_tokens(tokenizer.end_of_generation());
        }
        Self { tokenizer: tokenizer.clone(), trie, has_byte }
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether text that must come next can be written. If not, llguidance would pass over what is missing, and allow
    /// what comes behind.
    pub(super) fn can_write(&self, forced: &[u8]) -> bool {
        let forced = &forced[..forced.len().min(FORCED_BYTES_MAX)];
        let spelled = || self.tokenize_bytes(forced).iter().map(|&id| self.trie.token(id).len()).sum::<usize>();
        forced.iter().all(|&byte| self.has_byte[usize::from(byte)]) || spelled() == forced.len()
    }

    /// The tokens that this vocabulary writes the text with; what it cannot write is left out.
    fn encode(&self, text: &str) -> Vec<TokenId> {
        let ids = self.tokenizer.encode(text, SpecialTokens::AsText);
        let spelled = ids.iter().flat_map(|&id| self.trie.token(id));
        // A vocabulary may lack a character, and the trie a token.
        if spelled.eq(text.as_bytes()) { ids } else { self.trie.greedy_tokenize(text.as_bytes()) }
    }

    /// The tokens up to the first one that is not how the bytes go on.
    fn as_far_as_spelled(&self, mut ids: Vec<TokenId>, bytes: &[u8]) -> Vec<TokenId> {
        let mut rest = Some(bytes);
        let good = ids.iter().map_while(|&id| {
            rest = rest?.strip_prefix(self.trie.token(id));
            rest
        });
        let good = good.count();
        ids.truncate(good);
        ids
    }
}

impl TokenizerEnv for TokenTrie {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let mut ids = Vec::new();
        // Called at every step with all that is forced from there on, which may be the 200 KiB of a constant.
        let bytes = &bytes[..bytes.len().min(FORCED_BYTES_MAX)];
        // What is forced may begin or end within a character.
        for chunk in bytes.utf8_chunks() {
            ids.extend(self.encode(chunk.valid()));
            ids.extend(self.trie.greedy_tokenize(chunk.invalid()));
        }
        self.as_far_as_spelled(ids, bytes)
    }

    /// A tokenizer that puts a space before everything cannot encode the continuation of a text.
    fn tokenize_is_canonical(&self) -> bool {
        !self.tokenizer.adds_space_prefix()
    }
}
