//! BPE by a list of merges: over bytes (GPT-2, Llama 3, Qwen, SmolLM) or over characters (Gemma 4).

use std::collections::HashMap;

use super::byte_alphabet::{ByteDecoder, byte_to_char};
use super::merge::{Join, Symbol, merge_symbols};
use super::patterns::Spelling;
use super::pre_tokenizer::PreTokenizer;
use crate::vocabulary::{TokenKind, Vocabulary, VocabularyError, byte_token_value};

/// SentencePiece's visible space.
pub(crate) const VISIBLE_SPACE: char = '\u{2581}';

#[derive(Debug)]
pub(crate) struct Bpe {
    pre_tokenizer: PreTokenizer,
    alphabet: Alphabet,
    merges: HashMap<(u32, u32), Join>,
    /// Words that are taken whole; empty unless the family does that.
    whole_words: HashMap<Box<[u8]>, u32>,
}

/// What the merges start from.
#[derive(Debug)]
enum Alphabet {
    Bytes(Box<[Option<u32>; 256]>),
    /// Characters that the vocabulary lacks are spelled in bytes.
    Characters {
        ids: HashMap<char, u32>,
        bytes: Box<[Option<u32>; 256]>,
        newline_runs: Vec<Option<u32>>,
    },
}

impl Bpe {
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        ids: &HashMap<&str, u32>,
        pre_tokenizer: PreTokenizer,
    ) -> Result<Self, VocabularyError> {
        match pre_tokenizer.spelling {
            Spelling::Bytes => Self::over_bytes(vocabulary, ids, pre_tokenizer),
            Spelling::Characters => Self::over_characters(vocabulary, ids, pre_tokenizer),
        }
    }

    pub(crate) fn spelling(&self) -> Spelling {
        self.pre_tokenizer.spelling
    }

    fn over_bytes(
        vocabulary: &Vocabulary,
        ids: &HashMap<&str, u32>,
        pre_tokenizer: PreTokenizer,
    ) -> Result<Self, VocabularyError> {
        let chars = byte_to_char();
        let is_text = |id: &u32| is_reachable_by_text(vocabulary.kind(*id));
        let bytes: [Option<u32>; 256] =
            std::array::from_fn(|byte| ids.get(chars[byte].encode_utf8(&mut [0; 4]) as &str).copied().filter(is_text));
        let decoder = ByteDecoder::new();
        let whole_words = if pre_tokenizer.takes_whole_words {
            let words = ids.iter().filter(|(_, id)| is_text(id));
            words
                .map(|(text, &id)| {
                    let mut raw = Vec::new();
                    decoder.decode(text, &mut raw);
                    (raw.into_boxed_slice(), id)
                })
                .collect()
        } else {
            HashMap::new()
        };
        let merges = parse_merges(vocabulary, ids)?;
        Ok(Self { pre_tokenizer, alphabet: Alphabet::Bytes(Box::new(bytes)), merges, whole_words })
    }

    fn over_characters(
        vocabulary: &Vocabulary,
        ids: &HashMap<&str, u32>,
        pre_tokenizer: PreTokenizer,
    ) -> Result<Self, VocabularyError> {
        let mut chars = HashMap::new();
        let mut newline_runs = Vec::new();
        for (text, &id) in ids.iter().filter(|(_, id)| is_reachable_by_text(vocabulary.kind(**id))) {
            let mut letters = text.chars();
            if let (Some(only), None) = (letters.next(), letters.next()) {
                chars.insert(only, id);
            }
            if text.bytes().all(|byte| byte == b'\n') {
                newline_runs.resize(newline_runs.len().max(text.len() + 1), None);
                newline_runs[text.len()] = Some(id);
            }
        }
        let alphabet = Alphabet::Characters { ids: chars, bytes: byte_tokens(vocabulary), newline_runs };
        let merges = parse_merges(vocabulary, ids)?;
        Ok(Self { pre_tokenizer, alphabet, merges, whole_words: HashMap::new() })
    }

    /// Appends the tokens of plain text. Bytes that the vocabulary has no token for are left out.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols = Vec::new();
        let encode_word = |word: &str| {
            if let Some(&id) = self.whole_words.get(word.as_bytes()) {
                return out.push(id);
            }
            symbols.clear();
            self.alphabet.spell(word, &mut symbols);
            let join = |left: &Symbol, right: &Symbol| self.merges.get(&(left.token?, right.token?)).copied();
            merge_symbols(&mut symbols, join);
            out.extend(symbols.iter().filter_map(|symbol| symbol.token));
        };
        match self.alphabet {
            Alphabet::Bytes(_) => self.pre_tokenizer.for_each_word(text, encode_word),
            Alphabet::Characters { .. } => {
                let visible = text.replace(' ', VISIBLE_SPACE.encode_utf8(&mut [0; 4]));
                self.pre_tokenizer.for_each_word(&visible, encode_word);
            }
        }
    }

    /// Whether encoding would leave part of this character out.
    pub(crate) fn can_encode(&self, char: char) -> bool {
        let mut symbols = Vec::new();
        let char =
            if matches!(self.alphabet, Alphabet::Characters { .. }) && char == ' ' { VISIBLE_SPACE } else { char };
        self.alphabet.spell(char.encode_utf8(&mut [0; 4]), &mut symbols);
        symbols.iter().all(|symbol| symbol.token.is_some())
    }
}

impl Alphabet {
    fn spell(&self, word: &str, symbols: &mut Vec<Symbol>) {
        match self {
            Self::Bytes(ids) => symbols.extend(spell_bytes(word, 0, ids)),
            Self::Characters { ids, bytes, newline_runs } => {
                let is_newlines = word.bytes().all(|byte| byte == b'\n');
                if let Some(id) = newline_runs.get(word.len()).copied().flatten().filter(|_| is_newlines) {
                    symbols.push(Symbol { start: 0, end: word.len(), token: Some(id) });
                    return;
                }
                for (start, char) in word.char_indices() {
                    let end = start + char.len_utf8();
                    match ids.get(&char) {
                        Some(&id) => symbols.push(Symbol { start, end, token: Some(id) }),
                        None => symbols.extend(spell_bytes(&word[start..end], start, bytes)),
                    }
                }
            }
        }
    }
}

fn spell_bytes(text: &str, offset: usize, ids: &[Option<u32>; 256]) -> impl Iterator<Item = Symbol> {
    text.bytes().enumerate().map(move |(at, byte)| Symbol {
        start: offset + at,
        end: offset + at + 1,
        token: ids[byte as usize],
    })
}

/// The `<0x0A>` tokens by their byte.
pub(crate) fn byte_tokens(vocabulary: &Vocabulary) -> Box<[Option<u32>; 256]> {
    let mut bytes = Box::new([None; 256]);
    for (id, text) in vocabulary.tokens.iter().enumerate() {
        if vocabulary.kind(id as u32) == TokenKind::Byte
            && let Some(byte) = byte_token_value(text)
        {
            bytes[byte as usize] = Some(id as u32);
        }
    }
    bytes
}

/// Control tokens must not be reachable by spelling them, and a byte token stands for a byte, not for its name.
pub(crate) fn is_reachable_by_text(kind: TokenKind) -> bool {
    !matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::Byte)
}

fn parse_merges(
    vocabulary: &Vocabulary,
    ids: &HashMap<&str, u32>,
) -> Result<HashMap<(u32, u32), Join>, VocabularyError> {
    let mut merges: HashMap<(u32, u32), Join> = HashMap::with_capacity(vocabulary.merges.len());
    let mut joined = String::new();
    for (index, merge) in vocabulary.merges.iter().enumerate() {
        let malformed = || VocabularyError::MalformedMerge { index, merge: merge.clone() };
        // The left side may itself be a space, so the search for the divider starts after its first character.
        let first_len = merge.chars().next().map_or(0, char::len_utf8);
        let divider = first_len + merge[first_len..].find(' ').ok_or_else(malformed)?;
        let (left, right) = (&merge[..divider], &merge[divider + 1..]);
        if right.is_empty() {
            return Err(malformed());
        }
        joined.clear();
        joined.extend([left, right]);
        let id_of = |text: &str| {
            ids.get(text).copied().ok_or_else(|| VocabularyError::MergeOfUnknownToken {
                index,
                merge: merge.clone(),
                missing: text.to_owned(),
            })
        };
        let (pair, token) = ((id_of(left)?, id_of(right)?), id_of(&joined)?);
        if !is_reachable_by_text(vocabulary.kind(token)) {
            continue;
        }
        let priority = index as u32;
        if let Some(first) = merges.insert(pair, Join { priority, token }) {
            let first = first.priority as usize;
            return Err(VocabularyError::DuplicateMerge { first, second: index, merge: merge.clone() });
        }
    }
    Ok(merges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(tokens: &[&str], merges: &[&str]) -> Vocabulary {
        Vocabulary {
            model: "gpt2".into(),
            tokens: tokens.iter().map(|&token| token.into()).collect(),
            merges: merges.iter().map(|&merge| merge.into()).collect(),
            ..Default::default()
        }
    }

    fn build(vocabulary: &Vocabulary) -> Result<Bpe, VocabularyError> {
        Bpe::new(vocabulary, &vocabulary.ids_by_text()?, PreTokenizer::named("gpt-2").unwrap())
    }

    fn encode(vocabulary: &Vocabulary, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        build(vocabulary).unwrap().encode(text, &mut out);
        out
    }

    #[test]
    fn merges_apply_in_their_order() {
        let vocabulary = vocabulary(&["a", "b", "c", "ab", "bc"], &["b c", "a b"]);
        assert_eq!(encode(&vocabulary, "abc"), [0, 4]);
    }

    #[test]
    fn bad_merges_are_refused_with_their_place() {
        let unknown = build(&vocabulary(&["a", "b"], &["a b"])).unwrap_err();
        let expect = VocabularyError::MergeOfUnknownToken { index: 0, merge: "a b".into(), missing: "ab".into() };
        assert_eq!(unknown, expect);
        for malformed in ["", "ab", "ab ", "é"] {
            let error = build(&vocabulary(&["a"], &[malformed])).unwrap_err();
            assert_eq!(error, VocabularyError::MalformedMerge { index: 0, merge: malformed.into() });
        }
        let twice = build(&vocabulary(&["a", "b", "ab"], &["a b", "a b"])).unwrap_err();
        assert_eq!(twice, VocabularyError::DuplicateMerge { first: 0, second: 1, merge: "a b".into() });
    }

    #[test]
    fn merges_cannot_spell_a_control_token() {
        let mut vocabulary = vocabulary(&["<", ">", "<>"], &["< >"]);
        vocabulary.kinds = vec![TokenKind::Normal, TokenKind::Normal, TokenKind::Control];
        assert_eq!(encode(&vocabulary, "<>"), [0, 1]);
    }

    #[test]
    fn bytes_without_a_token_are_left_out_and_can_be_asked_for() {
        let vocabulary = vocabulary(&["a"], &[]);
        assert_eq!(encode(&vocabulary, "aba"), [0, 0]);
        assert!(!build(&vocabulary).unwrap().can_encode('b'));
    }
}
