//! Facets: a few numbers of each entry that searches are filtered by. Their meaning is defined elsewhere.

use std::ops::RangeInclusive;

/// Number of facets of an entry.
pub const FACETS: usize = 8;

/// The facets of one entry, such as kind, tenant or time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facets(pub [u32; FACETS]);

/// A range for each facet, and optionally a list of allowed values for one of them. The default accepts everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    ranges: [(u32, u32); FACETS],
    one_of: Option<(usize, Vec<u32>)>,
}

impl Default for Filter {
    fn default() -> Self {
        Self { ranges: [(0, u32::MAX); FACETS], one_of: None }
    }
}

impl Filter {
    /// Restricts a facet to a range. Panics if there is no such facet.
    pub fn with_range(mut self, facet: usize, range: RangeInclusive<u32>) -> Self {
        let (least, most) = self.ranges[facet];
        self.ranges[facet] = (least.max(*range.start()), most.min(*range.end()));
        self
    }

    /// Restricts a facet to one value.
    pub fn with_value(self, facet: usize, value: u32) -> Self {
        self.with_range(facet, value..=value)
    }

    /// Restricts a facet to a list of values, and replaces an earlier list. The time of a search grows with its length.
    pub fn with_one_of(mut self, facet: usize, values: &[u32]) -> Self {
        assert!(facet < FACETS, "there are {FACETS} facets");
        self.one_of = Some((facet, values.to_vec()));
        self
    }

    pub fn accepts_everything(&self) -> bool {
        *self == Self::default()
    }

    pub fn accepts(&self, facets: &Facets) -> bool {
        let in_ranges = self.ranges.iter().zip(&facets.0).all(|((least, most), value)| (least..=most).contains(&value));
        in_ranges && self.one_of.as_ref().is_none_or(|(facet, values)| values.contains(&facets.0[*facet]))
    }

    pub(crate) fn ranges(&self) -> &[(u32, u32); FACETS] {
        &self.ranges
    }

    pub(crate) fn one_of(&self) -> Option<(usize, &[u32])> {
        self.one_of.as_ref().map(|(facet, values)| (*facet, values.as_slice()))
    }
}
