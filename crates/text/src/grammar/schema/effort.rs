//! How much of a schema is tried to be enforced.
//!
//! Whether llguidance can hold a combination is known only when it has tried. A relaxed schema that it refuses, or that
//! is too large, is tried again with less; the last attempt is the type of the whole answer.

use super::super::limits::REFERENCE_DEPTH_MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Effort(usize);

impl Effort {
    /// Everything.
    pub(in super::super) const FULL: Self = Self(0);

    /// Returns the next lower effort, if there is one.
    pub(in super::super) fn less(self) -> Option<Self> {
        (self.0 < 8).then_some(Self(self.0 + 1))
    }

    /// Whether keywords that llguidance does not know are rewritten into those it does.
    pub(super) fn rewrites(self) -> bool {
        self.0 < 1
    }

    /// Whether counts of properties, and patterns for names, are enforced.
    pub(super) fn counts_properties(self) -> bool {
        self.0 < 1
    }

    /// Whether strings are held to patterns and formats.
    pub(super) fn matches_patterns(self) -> bool {
        self.0 < 2
    }

    /// Whether several schemas for the same value are merged.
    pub(super) fn merges(self) -> bool {
        self.0 < 3
    }

    /// Subschemas within subschemas, references followed.
    pub(super) fn depth_max(self) -> usize {
        match self.0 {
            0..=2 => REFERENCE_DEPTH_MAX,
            3 => 16,
            4 => 8,
            5 => 5,
            6 => 3,
            7 => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_effort_is_less_than_the_one_before() {
        let efforts: Vec<Effort> = std::iter::successors(Some(Effort::FULL), |effort| effort.less()).collect();
        assert!(efforts.windows(2).all(|pair| pair[0].depth_max() >= pair[1].depth_max()));
        assert_eq!(efforts.last().map(|effort| effort.depth_max()), Some(1));
        assert!(efforts[0].rewrites() && !efforts[1].rewrites());
    }
}
