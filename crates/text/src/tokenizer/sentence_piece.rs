//! SentencePiece BPE (`llama`): neighbours are joined by the score of the token they form; characters without a
//! token are spelled in bytes.

use std::collections::HashMap;

use super::bpe::{VISIBLE_SPACE, byte_tokens, is_reachable_by_text};
use super::merge::{Join, Symbol, merge_symbols};
use crate::vocabulary::{TokenKind, Vocabulary};

#[derive(Debug)]
pub(crate) struct SentencePiece {
    tokens: HashMap<Box<str>, Join>,
    bytes: Box<[Option<u32>; 256]>,
    /// Stands for bytes that have no token of their own.
    unknown: Option<u32>,
    space_prefix: SpacePrefix,
}

/// Whether a run of text gets a space in front, so that a first word looks like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpacePrefix {
    Added,
    Omitted,
}

impl SentencePiece {
    pub(crate) fn new(vocabulary: &Vocabulary, ids: &HashMap<&str, u32>, space_prefix: SpacePrefix) -> Self {
        let reachable = ids.iter().filter(|(_, id)| is_reachable_by_text(vocabulary.kind(**id)));
        let join = |id: u32| Join { priority: best_first(vocabulary.scores[id as usize]), token: id };
        let tokens = reachable.map(|(&text, &id)| (text.into(), join(id))).collect();
        let unknown = vocabulary.unk.filter(|&id| {
            // Some files name a control token here, which text must not be able to produce.
            vocabulary.kind(id) == TokenKind::Unknown || vocabulary.tokens[id as usize] == "<unk>"
        });
        Self { tokens, bytes: byte_tokens(vocabulary), unknown, space_prefix }
    }

    /// Appends the tokens of plain text that stands at the start or after a special token.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut visible = String::with_capacity(text.len() + text.len() / 4);
        if self.space_prefix == SpacePrefix::Added {
            visible.push(VISIBLE_SPACE);
        }
        visible.extend(text.chars().map(|char| if char == ' ' { VISIBLE_SPACE } else { char }));

        let mut symbols: Vec<Symbol> = visible
            .char_indices()
            .map(|(start, char)| {
                let end = start + char.len_utf8();
                Symbol { start, end, token: self.tokens.get(&visible[start..end]).map(|found| found.token) }
            })
            .collect();
        let join = |left: &Symbol, right: &Symbol| self.tokens.get(&visible[left.start..right.end]).copied();
        merge_symbols(&mut symbols, join);
        for symbol in symbols {
            match symbol.token {
                Some(id) => out.push(id),
                None => self.spell(&visible[symbol.start..symbol.end], out),
            }
        }
    }

    fn spell(&self, char: &str, out: &mut Vec<u32>) {
        if char.bytes().all(|byte| self.bytes[byte as usize].is_some()) {
            out.extend(char.bytes().filter_map(|byte| self.bytes[byte as usize]));
        } else {
            out.extend(self.unknown);
        }
    }

    /// Whether encoding keeps this character.
    pub(crate) fn can_encode(&self, char: char) -> bool {
        let char = if char == ' ' { VISIBLE_SPACE } else { char };
        let mut buffer = [0; 4];
        let text: &str = char.encode_utf8(&mut buffer);
        self.tokens.contains_key(text) || text.bytes().all(|byte| self.bytes[byte as usize].is_some())
    }
}

/// Orders scores as integers, the highest score lowest. Scores are finite: the vocabulary was validated.
fn best_first(score: f32) -> u32 {
    // Adding zero turns -0.0 into 0.0, which must count as equal.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(tokens: &[(&str, f32, TokenKind)]) -> SentencePiece {
        let vocabulary = Vocabulary {
            model: "llama".into(),
            tokens: tokens.iter().map(|token| token.0.into()).collect(),
            scores: tokens.iter().map(|token| token.1).collect(),
            kinds: tokens.iter().map(|token| token.2).collect(),
            ..Default::default()
        };
        vocabulary.validate().unwrap();
        SentencePiece::new(&vocabulary, &vocabulary.ids_by_text().unwrap(), SpacePrefix::Added)
    }

    fn encode(tokenizer: &SentencePiece, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        tokenizer.encode(text, &mut out);
        out
    }

    #[test]
    fn scores_order_as_numbers_do() {
        let descending = [3.5, 1.0, 0.0, -0.5, -1.0, -1e30];
        assert!(descending.windows(2).all(|pair| best_first(pair[0]) < best_first(pair[1])));
        assert_eq!(best_first(0.0), best_first(-0.0));
    }

    #[test]
    fn the_best_score_joins_first() {
        use TokenKind::Normal;
        let pieces = [("▁", -9.0, Normal), ("a", -9.0, Normal), ("b", -9.0, Normal), ("▁a", -2.0, Normal)];
        let pieces = [&pieces[..], &[("ab", -1.0, Normal)]].concat();
        assert_eq!(encode(&tokenizer(&pieces), "ab"), [0, 4]);
        assert_eq!(encode(&tokenizer(&pieces), ""), [0u32; 0]);
    }

    #[test]
    fn text_cannot_spell_a_control_token_nor_a_byte_token() {
        use TokenKind::{Byte, Control, Normal};
        let tokenizer = tokenizer(&[
            ("▁", -9.0, Normal),
            ("<", -9.0, Normal),
            ("s", -9.0, Normal),
            (">", -9.0, Normal),
            ("<s", -1.0, Normal),
            ("<s>", 0.0, Control),
            ("<0x41>", 0.0, Byte),
        ]);
        assert_eq!(encode(&tokenizer, "<s>"), [0, 4, 3]);
        assert_eq!(encode(&tokenizer, "A"), [0, 6]);
    }
}
