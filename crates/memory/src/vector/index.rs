//! The index as its callers see it.

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

/// Points linked for each entry that is inserted: more than one, so that a backlog shrinks.
const LINKED_PER_INSERT: usize = 2;

/// Vectors by id, found by likeness.
#[derive(Debug)]
pub struct VectorIndex {
    pub(super) dimension: usize,
    pub(super) options: IndexOptions,
    pub(super) segments: BTreeMap<SegmentId, Segment>,
    pub(super) growing: Growing,
    pub(super) places: HashMap<u64, Place>,
    /// Blobs of segments that are no more.
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

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
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
            places: HashMap::new(),
            dropped: Vec::new(),
            scratches: Mutex::default(),
        })
    }

    /// Adds an entry, or replaces the one of the same id.
    pub fn insert(&mut self, id: u64, code: &VectorCode, facets: Facets) -> Result<(), VectorError> {
        self.check(code)?;
        if let Some(place) = self.places.get(&id).copied() {
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
        self.give_back(scratch);
        Ok(())
    }

    /// Adds an entry that is not there to the growing segment, without linking it.
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
        self.places.insert(id, Place { segment: self.growing.id, entry });
    }

    /// Begins a new segment.
    pub(super) fn seal(&mut self) {
        let id = SegmentId(self.growing.id.0 + 1);
        self.growing = Growing { id, points: HashMap::new() };
        self.segments.insert(id, Segment::new(self.dimension, self.options.points_max()));
    }

    /// Whether there was such an entry.
    pub fn remove(&mut self, id: u64) -> bool {
        let Some(place) = self.places.remove(&id) else { return false };
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

    /// The nearest entries that the filter accepts, best first.
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
        self.give_back(scratch);
        Ok(hits)
    }

    pub fn contains(&self, id: u64) -> bool {
        self.places.contains_key(&id)
    }

    pub fn dimension(&self) -> usize {
        self.dimension
    }

    pub fn options(&self) -> &IndexOptions {
        &self.options
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// About how much memory the index takes.
    pub fn memory_bytes(&self) -> usize {
        let segments: usize = self.segments.values().map(Segment::memory_bytes).sum();
        // A hash map has a byte more for each place.
        segments
            + self.places.capacity() * (size_of::<(u64, Place)>() + 1)
            + self.growing.points.capacity() * (size_of::<(u64, u16)>() + 1)
    }

    pub(super) fn check(&self, code: &VectorCode) -> Result<(), VectorError> {
        let (got, expected) = (code.dimension(), self.dimension);
        if got == expected { Ok(()) } else { Err(VectorError::OtherDimension { got, expected }) }
    }

    fn growing_segment(&self) -> &Segment {
        &self.segments[&self.growing.id]
    }

    /// A segment that places name: it is there for as long as they do.
    pub(super) fn segment_mut(&mut self, id: SegmentId) -> &mut Segment {
        self.segments.get_mut(&id).expect("a segment outlives its entries")
    }

    /// One that no other search uses now.
    pub(super) fn scratch(&self) -> Scratch {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(super) fn give_back(&self, scratch: Scratch) {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}
