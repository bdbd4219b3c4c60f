//! A part of the index with its own graph.

use super::bits::BitSet;
use super::code::VectorCode;
use super::entries::{Accepted, Entries};
use super::facets::Facets;
use super::graph::Graph;
use super::link::{level_of, link_next};
use super::points::{POINTS_MAX, Points};
use super::walk::{Scratch, Space};

/// Points, the first of which are linked, and the entries whose vectors they are.
#[derive(Debug)]
pub(super) struct Segment {
    pub points: Points,
    pub graph: Graph,
    pub entries: Entries,
    /// Number of linked points in the blob that was last written.
    pub saved: usize,
}

impl Segment {
    pub fn new(dimension: usize, points_max: usize) -> Self {
        Self::with(Points::new(dimension, points_max), Graph::default())
    }

    pub fn with(points: Points, graph: Graph) -> Self {
        Self { points, saved: graph.len(), graph, entries: Entries::default() }
    }

    pub fn space(&self) -> Space<'_> {
        Space { points: &self.points, graph: &self.graph }
    }

    /// Returns whether there is no room for another entry with a new vector.
    pub fn is_full(&self) -> bool {
        self.points.is_full() || !self.takes_twin()
    }

    /// Returns whether there is room for another entry with a known vector.
    pub fn takes_twin(&self) -> bool {
        self.entries.len() < POINTS_MAX
    }

    /// Returns the number of points that are not linked yet.
    pub fn unlinked(&self) -> usize {
        self.points.len() - self.graph.len()
    }

    /// Links up to `most` points. Returns how many.
    pub fn link(&mut self, most: usize, ef: usize, scratch: &mut Scratch) -> usize {
        let count = most.min(self.unlinked());
        for _ in 0..count {
            let level = level_of(self.points.fingerprint(self.graph.len() as u16));
            link_next(&self.points, &mut self.graph, level, ef, scratch);
        }
        count
    }

    /// Adds an entry with a new vector.
    pub fn push(&mut self, id: u64, code: &VectorCode, facets: Facets) -> (u16, u16) {
        let point = self.points.push(code);
        (point, self.entries.push(id, point, facets))
    }

    /// Returns the linked points of some entries.
    pub fn accepted_points(&self, accepted: &Accepted) -> BitSet {
        let mut points = BitSet::default();
        points.reset(self.points.len());
        let linked = self.graph.len();
        let of_entries = accepted.entries.iter_from(0).map(|entry| usize::from(self.entries.point(entry)));
        of_entries.filter(|point| *point < linked).for_each(|point| {
            points.insert(point);
        });
        points
    }

    /// Returns the share of live entries.
    pub fn live_share(&self) -> f32 {
        self.entries.live_count() as f32 / self.entries.len().max(self.points.len()).max(1) as f32
    }

    pub fn memory_bytes(&self) -> usize {
        self.points.memory_bytes() + self.graph.memory_bytes() + self.entries.memory_bytes()
    }
}
