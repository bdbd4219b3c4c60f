//! Options, queries and results of an index.

use super::blob::BlobError;
use super::facets::Filter;
use super::points::POINTS_MAX;

/// Parameters of building and searching an index.
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// Candidates that a search keeps by default.
    pub ef_search: usize,
    /// Candidates from which the links of a new entry are chosen.
    pub ef_construction: usize,
    /// Number of different vectors after which a segment is sealed; a maximum of 65,535.
    pub segment_vectors_max: usize,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self { ef_search: 64, ef_construction: 128, segment_vectors_max: POINTS_MAX }
    }
}

impl IndexOptions {
    pub(super) fn points_max(&self) -> usize {
        self.segment_vectors_max.clamp(1, POINTS_MAX)
    }
}

/// A search.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    pub vector: &'a [f32],
    /// Number of entries wanted.
    pub k: usize,
    pub filter: Filter,
    /// Candidates to keep; `None` for the index's default.
    pub ef: Option<usize>,
}

/// A search result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    pub id: u64,
    /// Cosine similarity.
    pub similarity: f32,
}

/// Id of a segment's blob in the database. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

/// The graph of a segment.
#[derive(Clone, Debug)]
pub struct Blob {
    pub id: SegmentId,
    pub bytes: Vec<u8>,
}

/// Changes of the stored blobs. If they are not applied, nothing is lost but time at the next start.
#[derive(Clone, Debug, Default)]
pub struct Unsaved {
    /// Blobs that are new, or replace one of the same id.
    pub write: Vec<Blob>,
    pub delete: Vec<SegmentId>,
    /// Number of points in each blob.
    pub(super) linked: Vec<(SegmentId, usize)>,
}

/// The outcome of loading an index.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Blobs that could not be used. They are deleted with the next save.
    pub unreadable: Vec<(SegmentId, BlobError)>,
    /// Entries that were in no blob. Searches compare with all of them until `maintain` has linked them.
    pub unlinked: usize,
}
