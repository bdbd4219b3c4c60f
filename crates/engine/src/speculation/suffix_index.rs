//! Where the end of a text has occurred before.

use std::collections::HashMap;

use ruvllm_runner::TokenId;

/// Maximum number of tokens that are compared. Longer matches are hardly more often right (measured on chat, copies, code and
/// JSON), and each length takes an entry per token.
pub(crate) const MATCH_MAX: usize = 8;

/// An earlier occurrence of the last tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// How many tokens are the same, up to `MATCH_MAX`.
    pub length: usize,
    /// Where they end: the position of the token that followed.
    pub end: usize,
}

/// For every run of up to `MATCH_MAX` tokens, where it was last seen. Work per token does not grow with the text;
/// memory does, by at most `MATCH_MAX` entries per token (some 200 bytes, where keys and values take thousands).
#[derive(Debug, Default)]
pub(crate) struct SuffixIndex {
    ends: HashMap<u64, u32>,
}

impl SuffixIndex {
    /// Takes in the last of `tokens`, those before it having been taken in already, and finds the longest earlier
    /// occurrence of their end; of several, the most recent.
    pub(crate) fn push(&mut self, tokens: &[TokenId]) -> Option<Match> {
        let end = tokens.len();
        let position = u32::try_from(end).expect("contexts are far shorter");
        let mut longest = None;
        let mut hash = 0;
        for (before, token) in tokens.iter().rev().take(MATCH_MAX).enumerate() {
            let length = before + 1;
            hash = mix(hash, *token);
            let Some(earlier) = self.ends.insert(hash, position) else { continue };
            let earlier = earlier as usize;
            // Other tokens may have the same hash.
            if earlier >= length && tokens[earlier - length..earlier] == tokens[end - length..] {
                longest = Some(Match { length, end: earlier });
            }
        }
        longest
    }
}

fn mix(hash: u64, token: TokenId) -> u64 {
    (hash.rotate_left(23) ^ (u64::from(token) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Compares the end with every earlier place.
    fn search(tokens: &[u32]) -> Option<Match> {
        let same = |end: usize| {
            let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
            pairs.take(MATCH_MAX).take_while(|(a, b)| a == b).count()
        };
        let all = (1..tokens.len()).map(|end| Match { length: same(end), end });
        all.filter(|found| found.length > 0).max_by_key(|found| (found.length, found.end))
    }

    #[test]
    fn the_longest_match_wins_then_the_most_recent() {
        let mut index = SuffixIndex::default();
        let tokens = [1, 2, 3, 9, 2, 3, 8, 5, 3, 7, 1, 2, 3];
        let found: Vec<_> = (1..=tokens.len()).map(|end| index.push(&tokens[..end])).collect();
        assert_eq!(found[5], Some(Match { length: 2, end: 3 }));
        assert_eq!(found[8], Some(Match { length: 1, end: 6 }));
        assert_eq!(found[12], Some(Match { length: 3, end: 3 }));
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_search_finds(tokens in prop::collection::vec(0u32..4, 1..200)) {
            let mut index = SuffixIndex::default();
            for end in 1..=tokens.len() {
                prop_assert_eq!(index.push(&tokens[..end]), search(&tokens[..end]));
            }
        }

        #[test]
        fn long_repeats_are_found_up_to_the_maximum(
            phrase in prop::collection::vec(0u32..1000, 1..40), gap in prop::collection::vec(1000u32..2000, 0..20),
        ) {
            let tokens = [&phrase[..], &gap, &phrase].concat();
            let mut index = SuffixIndex::default();
            let mut last = None;
            for end in 1..=tokens.len() {
                last = index.push(&tokens[..end]);
                prop_assert_eq!(last, search(&tokens[..end]));
            }
            prop_assert!(last.is_some_and(|found| found.length >= phrase.len().min(MATCH_MAX)));
        }

        #[test]
        fn memory_is_bounded(tokens in prop::collection::vec(0u32..50_000, 1..300)) {
            let mut index = SuffixIndex::default();
            (1..=tokens.len()).for_each(|end| { index.push(&tokens[..end]); });
            prop_assert!(index.ends.len() <= tokens.len() * MATCH_MAX);
        }
    }
}
