//! Which documents are learned from, and which judge what was learned.

use std::fmt;

/// What a document is known by: a digest of its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DocumentKey(u64);

impl DocumentKey {
    /// Returns the key of a conversation or text from how it begins, so that what follows later is of the same
    /// document.
    pub fn of(beginning: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm learning documents 1");
        hasher.update(beginning.trim().as_bytes());
        let digest = hasher.finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_bytes()[..8]);
        Self(u64::from_le_bytes(first))
    }

    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for DocumentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DocumentKey({:016x})", self.0)
    }
}

/// What a document is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Learned from.
    Training,
    /// Says when training should end.
    Validation,
    /// Seen by nothing but the gate.
    HeldOut,
}

/// Shares of all documents.
const HELD_OUT: f64 = 0.25;
const VALIDATION: f64 = 0.1;

/// Says what a document is for. That follows from its contents alone: whatever is added, one that was held out stays
/// so, and no later version has been trained on what an earlier one was judged by.
pub fn part_of(document: DocumentKey) -> Part {
    match document.0 as f64 / u64::MAX as f64 {
        share if share < HELD_OUT => Part::HeldOut,
        share if share < HELD_OUT + VALIDATION => Part::Validation,
        _ => Part::Training,
    }
}

/// How many documents of each part there are, or have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    pub training: usize,
    pub validation: usize,
    pub held_out: usize,
}

impl Needed {
    /// With fewer, nothing that is learned could show that it is more than chance.
    pub const LEAST: Self = Self { training: 8, validation: 2, held_out: 6 };

    /// Counts documents by what they are for.
    pub fn count(documents: impl IntoIterator<Item = DocumentKey>) -> Self {
        let mut counts = Self { training: 0, validation: 0, held_out: 0 };
        for document in documents {
            match part_of(document) {
                Part::Training => counts.training += 1,
                Part::Validation => counts.validation += 1,
                Part::HeldOut => counts.held_out += 1,
            }
        }
        counts
    }

    /// Returns whether there are enough of each.
    pub fn is_enough(self) -> bool {
        let least = Self::LEAST;
        self.training >= least.training && self.validation >= least.validation && self.held_out >= least.held_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_their_shares_and_never_change() {
        let keys = (0..4000).map(|number| DocumentKey::of(&format!("Question {number}?")));
        let Needed { training, validation, held_out } = Needed::count(keys);
        assert!((2500..2700).contains(&training) && (340..460).contains(&validation), "{training} {validation}");
        assert!((920..1080).contains(&held_out), "{held_out}");
        // What was held out by one version of the program has to be by the next.
        let parts: String = (0..16)
            .map(|number| match part_of(DocumentKey::of(&format!("Question {number}?"))) {
                Part::Training => 't',
                Part::Validation => 'v',
                Part::HeldOut => 'h',
            })
            .collect();
        assert_eq!(parts, PARTS);
        assert_eq!(DocumentKey::of(" a\n"), DocumentKey::of("a"));
    }

    const PARTS: &str = "tththtttttthtttv";
}
