//! The vector index.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use ruvllm_kernels::ops::ByteRow;

use super::code::{DIMENSION_MAX, VectorCode, VectorError};
use super::facets::Facets;
use super::options::{Hit, IndexOptions, Query, SegmentId};
use super::points::Probe;
use super::search::Search;
use super::segment::Segment;
use super::walk::Scratch;

/// Points linked with each insertion. More than one, so that a backlog shrinks.
const LINKED_PER_INSERT: usize = 2;

/// Vectors by id, searched by similarity.
#[derive(Debug)]
pub struct VectorIndex {
    pub(super) dimension: usize,
    pub(super) options: IndexOptions,
    pub(super) segments: BTreeMap<SegmentId, Segment>,
    pub(super) growing: Growing,
    pub(super) positions: HashMap<u64, Position>,
    /// Segments that were removed and whose blobs are not deleted yet.
    pub(super) dropped: Vec<SegmentId>,
    scratches: Mutex<Vec<Scratch>>,
}

/// The segment that new entries go to.
#[derive(Debug)]
pub(super) struct Growing {
    pub id: SegmentId,
    /// Points by the fingerprints of their vectors.
    pub points: HashMap<u64, u16>,
}

/// The position of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub segment: SegmentId,
    pub entry: u16,
}

impl VectorIndex {
    pub fn new(dimension: usize, options: IndexOptions) -> Result<Self, VectorError> {
        if dimension == 0 || dimension > DIMENSION_MAX {
            return Err(VectorError::Dimension(dimension));
        }
        let growing = Growing { id: SegmentId(0), points: HashMap::new() };
        Ok(Self {
            dimension,
            options,
            segments: BTreeMap::from([(growing.id, Segment::new(dimension, options.points_max()))]),
            growing,
            positions: HashMap::new(),
            dropped: Vec::new(),
            scratches: Mutex::default(),
        })
    }

    /// Inserts an entry, and replaces one of the same id.
    pub fn insert(&mut self, id: u64, code: &VectorCode, facets: Facets) -> Result<(), VectorError> {
        self.check(code)?;
        if let Some(place) = self.positions.get(&id).copied() {
            let segment = self.segment_mut(place.segment);
            if segment.points.is(segment.entries.point(usize::from(place.entry)), code) {
                segment.entries.set_facets(place.entry, facets);
                return Ok(());
            }
            self.remove(id);
        }
        self.put(id, code, facets);
        let ef = self.options.ef_construction;
        let mut scratch = self.scratch();
        self.segment_mut(self.growing.id).link(LINKED_PER_INSERT, ef, &mut scratch);
        self.release(scratch);
        Ok(())
    }

    /// Adds a new entry to the growing segment, without linking it.
    pub(super) fn put(&mut self, id: u64, code: &VectorCode, facets: Facets) {
        if self.growing_segment().is_full() {
            self.seal();
        }
        let fingerprint = code.fingerprint();
        let twin = self.growing.points.get(&fingerprint).copied();
        let segment = self.segment_mut(self.growing.id);
        let entry = match twin {
            Some(point) if segment.points.is(point, code) => segment.entries.push(id, point, facets),
            _ => {
                let (point, entry) = segment.push(id, code, facets);
                self.growing.points.insert(fingerprint, point);
                entry
            }
        };
        self.positions.insert(id, Position { segment: self.growing.id, entry });
    }

    /// Seals the growing segment and starts a new one.
    pub(super) fn seal(&mut self) {
        let id = SegmentId(self.growing.id.0 + 1);
        self.growing = Growing { id, points: HashMap::new() };
        self.segments.insert(id, Segment::new(self.dimension, self.options.points_max()));
    }

    /// Removes an entry. Returns whether there was one.
    pub fn remove(&mut self, id: u64) -> bool {
        let Some(place) = self.positions.remove(&id) else { return false };
        let segment = self.segment_mut(place.segment);
        segment.entries.remove(place.entry);
        if segment.entries.live_count() == 0 {
            self.drop_segment(place.segment);
        }
        true
    }

    pub(super) fn drop_segment(&mut self, id: SegmentId) {
        if id == self.growing.id {
            self.seal();
        }
        if self.segments.remove(&id).is_some_and(|segment| segment.saved > 0) {
            self.dropped.push(id);
        }
    }

    /// Returns the nearest entries that the filter accepts, the most similar first.
    pub fn search(&self, query: &Query<'_>) -> Result<Vec<Hit>, VectorError> {
        let code = VectorCode::new(query.vector, self.dimension)?;
        let row = ByteRow::new(code.codes());
        let k = query.k.min(self.len());
        if k == 0 {
            return Ok(Vec::new());
        }
        let search = Search {
            probe: Probe { row: &row, scale: code.scale() },
            k,
            ef: query.ef.unwrap_or(self.options.ef_search).clamp(k, self.len()),
            filter: &query.filter,
        };
        let mut scratch = self.scratch();
        let hits = search.run(self.segments.values(), &mut scratch);
        self.release(scratch);
        Ok(hits)
    }

    pub fn contains(&self, id: u64) -> bool {
        self.positions.contains_key(&id)
    }

    pub fn dimension(&self) -> usize {
        self.dimension
    }

    pub fn options(&self) -> &IndexOptions {
        &self.options
    }

    pub fn len(&self) -> usize {
        self.positions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Estimates the memory that the index takes.
    pub fn memory_bytes(&self) -> usize {
        let segments: usize = self.segments.values().map(Segment::memory_bytes).sum();
        // A hash map has one more byte for each slot.
        segments
            + self.positions.capacity() * (size_of::<(u64, Position)>() + 1)
            + self.growing.points.capacity() * (size_of::<(u64, u16)>() + 1)
    }

    pub(super) fn check(&self, code: &VectorCode) -> Result<(), VectorError> {
        let (got, expected) = (code.dimension(), self.dimension);
        if got == expected { Ok(()) } else { Err(VectorError::OtherDimension { got, expected }) }
    }

    fn growing_segment(&self) -> &Segment {
        &self.segments[&self.growing.id]
    }

    /// Returns a segment that holds entries: it exists for as long as they do.
    pub(super) fn segment_mut(&mut self, id: SegmentId) -> &mut Segment {
        self.segments.get_mut(&id).expect("a segment outlives its entries")
    }

    /// Returns buffers that no other search uses now.
    pub(super) fn scratch(&self) -> Scratch {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(super) fn release(&self, scratch: Scratch) {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}
