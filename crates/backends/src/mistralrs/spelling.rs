//! Between tokens and the text that mistral.rs reads and writes.

use std::collections::HashMap;
use std::sync::Arc;

use ruvllm_runner::TokenId;
use ruvllm_text::{Detokenizer, SpecialTokens, Tokenizer};

/// Spells text with the tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Spelling {
    tokenizer: Arc<Tokenizer>,
    /// Tokens that stand for text, by their bytes.
    tokens: HashMap<Box<[u8]>, TokenId>,
    bytes_max: usize,
}

impl Spelling {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let mut tokens = HashMap::<Box<[u8]>, TokenId>::new();
        for id in (0..tokenizer.vocab_size() as TokenId).filter(|id| !tokenizer.is_control(*id)) {
            let bytes = tokenizer.token_bytes(id);
            if !bytes.is_empty() {
                // Of two that stand for the same the first is the usual one.
                tokens.entry(bytes.into()).or_insert(id);
            }
        }
        let bytes_max = tokens.keys().map(|bytes| bytes.len()).max().unwrap_or(0);
        Self { tokenizer, tokens, bytes_max }
    }

    /// Returns a token that ends an answer.
    pub(super) fn end(&self) -> Option<TokenId> {
        self.tokenizer.eos().or(self.tokenizer.end_of_generation().first().copied())
    }

    /// Spells a part of an answer: the longest token that it begins with, and so on. A part that is one token gives that token,
    /// or another that stands for the same bytes.
    pub(super) fn spell(&self, text: &str) -> Result<Vec<TokenId>, String> {
        let (mut rest, mut spelled) = (text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let longest = self.bytes_max.min(rest.len());
            let found = (1..=longest).rev().find_map(|len| Some((len, *self.tokens.get(&rest[..len])?)));
            let (len, token) =
                found.ok_or_else(|| format!("{text:?} cannot be written with the model's vocabulary"))?;
            spelled.push(token);
            rest = &rest[len..];
        }
        Ok(spelled)
    }

    /// Returns the text of a prompt, control tokens as they are written.
    pub(super) fn text(&self, prompt: &[TokenId]) -> String {
        let mut detokenizer = Detokenizer::from_start(Arc::clone(&self.tokenizer));
        let mut text = String::new();
        for id in prompt {
            if self.tokenizer.is_control(*id) {
                text.push_str(&detokenizer.flush());
                text.push_str(self.tokenizer.token_text(*id));
            } else {
                text.push_str(&detokenizer.push(*id));
            }
        }
        text.push_str(&detokenizer.flush());
        text
    }

    /// Returns the text of the first control token that a prompt's text has where the prompt has none.
    pub(super) fn first_forged(&self, prompt: &[TokenId]) -> Option<&str> {
        let is_control = |id: &TokenId| self.tokenizer.is_control(*id);
        let meant = prompt.iter().copied().filter(is_control);
        let read = self.tokenizer.encode(&self.text(prompt), SpecialTokens::Parse);
        let mut read = read.into_iter().filter(is_control);
        let differs = meant.map(Some).chain(std::iter::repeat(None)).zip(read.by_ref()).find(|(a, b)| *a != Some(*b));
        differs.map(|(_, token)| self.tokenizer.token_text(token))
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_text::{TokenKind, Vocabulary};

    use super::*;

    const START: TokenId = 5;

    /// Spelling with a few tokens, in the letters by which byte-level vocabularies write bytes: Ġ is a space, Ã© are those of é.
    fn spelling() -> Spelling {
        let texts = ["a", "b", "ab", "Ġ", "Ã©", "<s>", "</s>", "<", "s", ">"];
        let kinds = texts
            .map(|text| if text.len() > 2 && text.starts_with('<') { TokenKind::Control } else { TokenKind::Normal });
        let vocabulary = Vocabulary {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: texts.map(String::from).into(),
            kinds: kinds.into(),
            bos: Some(START),
            eos: Some(6),
            ..Vocabulary::default()
        };
        Spelling::new(Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap()))
    }

    #[test]
    fn an_answer_is_spelled_with_the_longest_tokens() {
        let spelling = spelling();
        assert_eq!(spelling.spell("ab aé").unwrap(), [2, 3, 0, 4]);
        assert!(spelling.spell("").unwrap().is_empty());
        assert!(spelling.spell("abc").unwrap_err().contains("cannot be written"));
        // What an answer spells is text.
        assert_eq!(spelling.spell("<s>").unwrap(), [7, 8, 9]);
        assert_eq!(spelling.end(), Some(6));
    }

    #[test]
    fn text_that_reads_as_a_control_token_is_found() {
        let spelling = spelling();
        let said = [START, 0, 3, 1];
        assert_eq!((&*spelling.text(&said), spelling.first_forged(&said)), ("<s>a b", None));
        let forged = [START, 0, 7, 8, 9, 1];
        assert_eq!((&*spelling.text(&forged), spelling.first_forged(&forged)), ("<s>a<s>b", Some("<s>")));
        let before_a_real_one = [7, 8, 9, START, 0];
        assert_eq!(spelling.first_forged(&before_a_real_one), Some("<s>"));
    }
}
