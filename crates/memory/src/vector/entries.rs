//! The entries of a segment. Several may share a point, since requests repeat.

use super::bits::BitSet;
use super::columns::Columns;
use super::facets::{Facets, Filter};
use super::points::NONE;

#[derive(Debug, Default)]
pub(super) struct Entries {
    ids: Vec<u64>,
    points: Vec<u16>,
    /// The previous entry of the same point.
    before: Vec<u16>,
    /// The last entry of each point.
    last: Vec<u16>,
    columns: Columns,
    live: BitSet,
    live_count: usize,
}

/// The entries that a search may return.
#[derive(Debug)]
pub(super) struct Accepted {
    pub entries: BitSet,
    pub count: usize,
}

impl Entries {
    /// Returns the number of entries ever added.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns the number of entries that were not removed.
    pub fn live_count(&self) -> usize {
        self.live_count
    }

    /// Adds an entry. A segment has fewer than 65,535.
    pub fn push(&mut self, id: u64, point: u16, facets: Facets) -> u16 {
        let entry = self.len();
        if self.last.len() <= usize::from(point) {
            self.last.resize(usize::from(point) + 1, NONE);
        }
        self.ids.push(id);
        self.points.push(point);
        self.before.push(std::mem::replace(&mut self.last[usize::from(point)], entry as u16));
        self.columns.push(facets);
        self.live.grow(entry + 1);
        self.live.insert(entry);
        self.live_count += 1;
        entry as u16
    }

    pub fn remove(&mut self, entry: u16) {
        if self.live.remove(usize::from(entry)) {
            self.live_count -= 1;
        }
    }

    pub fn set_facets(&mut self, entry: u16, facets: Facets) {
        self.columns.set(usize::from(entry), facets);
    }

    pub fn facets(&self, entry: u16) -> Facets {
        self.columns.get(usize::from(entry))
    }

    pub fn id(&self, entry: usize) -> u64 {
        self.ids[entry]
    }

    pub fn point(&self, entry: usize) -> u16 {
        self.points[entry]
    }

    /// Returns the entries that were not removed, with their ids.
    pub fn live(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.live.iter_from(0).map(|entry| (entry as u16, self.ids[entry]))
    }

    /// Returns the entries of a point, the newest first, including removed ones.
    pub fn of_point(&self, point: u16) -> impl Iterator<Item = usize> + '_ {
        let known = |entry: u16| (entry != NONE).then_some(entry);
        let last = self.last.get(usize::from(point)).copied().and_then(known);
        std::iter::successors(last, move |entry| known(self.before[usize::from(*entry)])).map(usize::from)
    }

    /// Returns the live entries that the filter accepts.
    pub fn accepted(&self, filter: &Filter) -> Accepted {
        let mut entries = self.live.clone();
        if filter.accepts_everything() {
            return Accepted { entries, count: self.live_count };
        }
        self.columns.keep_accepted(filter, &mut entries);
        Accepted { count: entries.count(), entries }
    }

    pub fn memory_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<u64>()
            + (self.points.capacity() + self.before.capacity() + self.last.capacity()) * size_of::<u16>()
            + self.columns.memory_bytes()
            + size_of_val(self.live.words())
    }
}
