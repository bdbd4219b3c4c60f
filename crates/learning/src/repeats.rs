//! Answers that say the same to everybody: a slogan, or a template. One of them says all that there is to learn, and many
//! would be learned by heart, at the cost of everything else.

use std::collections::HashMap;

use crate::overlap::{SHARED_TOKENS, hash};

/// Remembers answers by their runs of [`SHARED_TOKENS`] tokens.
#[derive(Clone, Debug, Default)]
pub struct Repeats {
    /// The document that a run was seen in first.
    runs: HashMap<u64, u64>,
}

impl Repeats {
    /// Takes an answer, unless at least half of its runs are in answers of other documents that were taken. Short answers,
    /// which have no run, are always taken: many questions may well be answered with yes.
    pub fn take(&mut self, document: u64, answer: &[u32]) -> bool {
        let runs: Vec<u64> = answer.windows(SHARED_TOKENS).map(hash).collect();
        let elsewhere = |run: &&u64| self.runs.get(run).is_some_and(|seen_in| *seen_in != document);
        if !runs.is_empty() && 2 * runs.iter().filter(elsewhere).count() >= runs.len() {
            return false;
        }
        runs.into_iter().for_each(|run| {
            self.runs.entry(run).or_insert(document);
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slogan_is_taken_once_and_what_differs_always() {
        let mut repeats = Repeats::default();
        let slogan: Vec<u32> = (100..140).collect();
        let taken: Vec<bool> = (0..4).map(|document| repeats.take(document, &slogan)).collect();
        assert_eq!(taken, [true, false, false, false]);
        assert!(repeats.take(0, &slogan), "a conversation may repeat itself");
        let quoting: Vec<u32> = slogan.iter().copied().take(16).chain(200..230).collect();
        assert!(repeats.take(5, &quoting), "a quotation is no repetition");
        let filled: Vec<u32> = (300..303).chain(slogan).collect();
        assert!(!repeats.take(6, &filled), "a template with other words in it");
        assert!((10..13).all(|document| repeats.take(document, &[1; 12])), "yes");
    }
}
