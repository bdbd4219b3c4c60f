//! Texts that share long runs of tokens: what was learned by heart says nothing about what was learned.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Runs of this many tokens do not recur by chance.
pub const SHARED_TOKENS: usize = 13;

/// All runs of [`SHARED_TOKENS`] tokens of some texts.
#[derive(Clone, Debug, Default)]
pub struct Shingles(HashSet<u64>);

impl Shingles {
    pub fn of<'t>(texts: impl IntoIterator<Item = &'t [u32]>) -> Self {
        Self(texts.into_iter().flat_map(|text| text.windows(SHARED_TOKENS).map(hash)).collect())
    }

    /// Returns whether a text has one of the runs.
    pub fn touch(&self, text: &[u32]) -> bool {
        text.windows(SHARED_TOKENS).any(|run| self.0.contains(&hash(run)))
    }
}

/// The same in every run of the program.
pub(crate) fn hash(run: &[u32]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirteen_tokens_in_a_row_are_shared_and_twelve_are_not() {
        let text: Vec<u32> = (0..40).collect();
        let shingles = Shingles::of([&text[..]]);
        let other = |run: &[u32]| [&[90, 91][..], run, &[92]].concat();
        assert!(shingles.touch(&other(&text[5..18])));
        assert!(!shingles.touch(&other(&text[5..17])));
        assert!(!Shingles::of([&text[..12]]).touch(&text));
    }
}
