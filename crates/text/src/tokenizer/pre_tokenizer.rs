//! Splits text into words before BPE, as the model was trained with.
//!
//! A pre-tokenizer is a list of splits; each one divides the pieces of the split before it into what its pattern matches
//! and what lies between the matches.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of whitespace leaves its last character to the word that
//! follows. A look-ahead needs a backtracking engine, which user text can drive into its limits (a megabyte of
//! spaces). So the patterns here have no look-ahead: whitespace is a pattern of its own, and [`Split`] gives the last
//! character back. What remains runs in linear time.

use regex_automata::meta::Regex;
use regex_automata::{Input, PatternID};

use super::patterns::{self, Spelling};

/// The text between two words is matched by this pattern, and gives its last character back.
const WHITESPACE: &str = r"\s+";

/// How a family of models splits text, and the habits that come with it.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    splits: Vec<Split>,
    pub spelling: Spelling,
    /// A word that is a token as it stands is taken whole, even where the merges would lead elsewhere.
    pub takes_whole_words: bool,
    /// Whether a BOS goes first where the model file does not say.
    pub adds_bos: bool,
}

#[derive(Debug)]
struct Split {
    regex: Regex,
    /// The pattern whose matches give their last character back when a word follows.
    lenders: Option<PatternID>,
}

impl PreTokenizer {
    /// `None` if the name is not known.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let family = patterns::family(name)?;
        let splits = family.splits.iter().map(Split::new).collect();
        let spelling = family.spelling;
        Some(Self { splits, spelling, takes_whole_words: family.takes_whole_words, adds_bos: family.adds_bos })
    }

    /// Calls `word` for each word in order; together they are the text.
    pub(crate) fn for_each_word<'t>(&self, text: &'t str, mut word: impl FnMut(&'t str)) {
        split_with(&self.splits, text, &mut word);
    }
}

fn split_with<'t>(splits: &[Split], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    match splits.split_first() {
        None => word(text),
        Some((first, rest)) => first.for_each_piece(text, |piece| split_with(rest, piece, word)),
    }
}

impl Split {
    fn new(pattern: &patterns::Pattern) -> Self {
        let (regex, lenders) = match pattern {
            patterns::Pattern::Plain(main) => (Regex::new(main), None),
            patterns::Pattern::WordsThenWhitespace(main) => {
                (Regex::new_many(&[*main, WHITESPACE]), Some(PatternID::must(1)))
            }
        };
        // The patterns are constants and a test builds each of them.
        Self { regex: regex.expect("built-in pattern"), lenders }
    }

    fn for_each_piece<'t>(&self, text: &'t str, mut piece: impl FnMut(&'t str)) {
        let mut done = 0;
        let mut at = 0;
        while let Some(found) = self.regex.search(&Input::new(text).range(at..)) {
            let (start, mut end) = (found.start(), found.end());
            if self.lenders == Some(found.pattern()) {
                end = without_lent_character(text, start, end);
            }
            if start > done {
                piece(&text[done..start]);
            }
            // No pattern matches the empty string, so this always moves on.
            piece(&text[start..end]);
            done = end;
            at = end;
        }
        if done < text.len() {
            piece(&text[done..]);
        }
    }
}

/// Whitespace before a word leaves its last character to that word, unless it is the only one.
fn without_lent_character(text: &str, start: usize, end: usize) -> usize {
    let last = text[start..end].chars().next_back().map_or(0, char::len_utf8);
    if end < text.len() && end - start > last { end - last } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, expect: &[&str]) {
        let mut words = Vec::new();
        PreTokenizer::named(name).unwrap().for_each_word(text, |word| words.push(word));
        assert_eq!(words, expect, "{name} on {text:?}");
    }

    #[test]
    fn whitespace_leaves_its_last_character_to_the_word() {
        check("gpt-2", "a   b", &["a", "  ", " b"]);
        check("gpt-2", "a \n b  ", &["a", " \n", " b", "  "]);
        check("gpt-2", "a\t\tb", &["a", "\t", "\t", "b"]);
        check("llama-bpe", "a\t\tb", &["a", "\t", "\tb"]);
        check("llama-bpe", "a \n\n  b", &["a", " \n\n", " ", " b"]);
    }

    #[test]
    fn digits_are_grouped_as_the_family_does() {
        check("gpt-2", "x 12345", &["x", " 12345"]);
        check("smollm", "x 123", &["x", " ", "1", "2", "3"]);
        check("llama-bpe", "x 12345", &["x", " ", "123", "45"]);
        check("qwen2", "x 12", &["x", " ", "1", "2"]);
    }

    #[test]
    fn contractions_are_words() {
        check("gpt-2", "I've DON'T", &["I", "'ve", " DON", "'", "T"]);
        check("llama-bpe", "I've DON'T", &["I", "'ve", " DON", "'T"]);
    }

    #[test]
    fn words_together_are_the_text() {
        let text = "Hi  there,\r\n\n\tdon't 12345 é́ 你好 👩‍👩‍👧 \u{a0}\u{2003}x   ";
        for name in patterns::names() {
            let mut joined = String::new();
            PreTokenizer::named(name).unwrap().for_each_word(text, |word| joined.push_str(word));
            assert_eq!(joined, text, "{name}");
        }
    }

    #[test]
    fn no_pattern_matches_nothing() {
        for name in patterns::names() {
            PreTokenizer::named(name).unwrap().for_each_word("a  b\n", |word| assert!(!word.is_empty(), "{name}"));
        }
    }

    #[test]
    fn an_unknown_name_is_not_guessed() {
        assert!(PreTokenizer::named("no-such-family").is_none());
    }
}
