//! Token ids to text as they are generated, without ever splitting a character.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Turns a stream of tokens into text. One per output sequence.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character whose other bytes have not come yet: at most three bytes.
    incomplete: Vec<u8>,
    first_space: FirstSpace,
}

/// What to do with a space that the first token begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstSpace {
    /// The tokenizer put it there when it encoded the text.
    Drop,
    Keep,
}

impl Detokenizer {
    /// For tokens that were encoded from a text, or that start one.
    pub fn from_start(tokenizer: Arc<Tokenizer>) -> Self {
        let first_space = if tokenizer.adds_space_prefix() { FirstSpace::Drop } else { FirstSpace::Keep };
        Self { tokenizer, incomplete: Vec::new(), first_space }
    }

    /// For tokens that continue a prompt: a space at the front belongs to the text.
    pub fn continuing(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, incomplete: Vec::new(), first_space: FirstSpace::Keep }
    }

    /// Adds a token and returns the characters that are now complete, possibly none. Bytes that cannot become valid
    /// UTF-8 any more turn into U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        let mut bytes = self.tokenizer.token_bytes(id);
        if self.first_space == FirstSpace::Drop && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.first_space = FirstSpace::Keep;
        }
        self.incomplete.extend_from_slice(bytes);
        self.take_complete()
    }

    /// Ends the stream: a character that was begun and never completed becomes U+FFFD.
    pub fn flush(&mut self) -> String {
        let rest = std::mem::take(&mut self.incomplete);
        String::from_utf8_lossy(&rest).into_owned()
    }

    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut used = 0;
        for chunk in self.incomplete.utf8_chunks() {
            text.push_str(chunk.valid());
            used += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_tail = used + invalid.len() == self.incomplete.len();
            if invalid.is_empty() || (is_tail && could_be_completed(invalid)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            used += invalid.len();
        }
        self.incomplete.drain(..used);
        text
    }
}

fn could_be_completed(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{TokenKind, Vocabulary};
    use proptest::prelude::*;

    /// Tokens 0 to 255 are the bytes; 256 is "▁a", 257 is control.
    fn tokenizer() -> Arc<Tokenizer> {
        let mut tokens: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
        let mut kinds = vec![TokenKind::Byte; 256];
        tokens.extend(["▁a".into(), "<s>".into()]);
        kinds.extend([TokenKind::Normal, TokenKind::Control]);
        let scores = vec![0.0; tokens.len()];
        let vocabulary = Vocabulary { model: "llama".into(), tokens, kinds, scores, ..Default::default() };
        Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap())
    }

    fn stream(ids: impl IntoIterator<Item = u32>) -> Vec<String> {
        let mut detokenizer = Detokenizer::continuing(tokenizer());
        let mut out: Vec<String> = ids.into_iter().map(|id| detokenizer.push(id)).collect();
        out.push(detokenizer.flush());
        out
    }

    #[test]
    fn a_character_appears_when_its_last_byte_has_come() {
        assert_eq!(stream("é!".bytes().map(u32::from)), ["", "é", "!", ""]);
        assert_eq!(stream("🦙".bytes().map(u32::from)), ["", "", "", "🦙", ""]);
    }

    #[test]
    fn invalid_bytes_are_replaced_once_certain() {
        assert_eq!(stream([0xFF, 0x61]), ["\u{FFFD}", "a", ""]);
        assert_eq!(stream([0xF0, 0x9F, 0x61]), ["", "", "\u{FFFD}a", ""]);
        assert_eq!(stream([0xC3]), ["", "\u{FFFD}"]);
    }

    #[test]
    fn the_space_that_encoding_added_is_dropped_only_at_the_start() {
        let mut start = Detokenizer::from_start(tokenizer());
        assert_eq!([start.push(257), start.push(256), start.push(256)], ["", "a", " a"]);
        let mut continued = Detokenizer::continuing(tokenizer());
        assert_eq!(continued.push(256), " a");
    }

    proptest! {
        #[test]
        fn a_stream_gives_what_decoding_at_once_gives(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            prop_assert_eq!(stream(bytes.iter().map(|&byte| byte.into())).concat(), whole);
        }
    }
}
