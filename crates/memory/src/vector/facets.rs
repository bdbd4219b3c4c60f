//! What entries are filtered by: a few numbers each, whose meaning is decided elsewhere.

use std::ops::RangeInclusive;

/// Facets of an entry.
pub const FACETS: usize = 8;

/// Numbers that filters ask about, such as kind, tenant or time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facets(pub [u32; FACETS]);

/// A range for each facet, and perhaps a few values of which one facet must have one. The default accepts everything.
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
    /// Also asks that a facet lies in a range. Panics if there is no such facet.
    pub fn with_range(mut self, facet: usize, range: RangeInclusive<u32>) -> Self {
        let (least, most) = self.ranges[facet];
        self.ranges[facet] = (least.max(*range.start()), most.min(*range.end()));
        self
    }

    /// Also asks that a facet has a value.
    pub fn with_value(self, facet: usize, value: u32) -> Self {
        self.with_range(facet, value..=value)
    }

    /// Asks that a facet has one of a few values, instead of what was asked so before. Time grows with their number.
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
