//! What goes into an index and comes out of it.

use super::blob::BlobError;
use super::facets::Filter;
use super::points::POINTS_MAX;

/// How an index is built and searched.
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// Candidates that a search keeps, unless the query says otherwise.
    pub ef_search: usize,
    /// Candidates from which the links of a new entry are chosen.
    pub ef_construction: usize,
    /// Different vectors after which a segment is sealed and the next begun; at most 65,535.
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

/// What is looked for.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    pub vector: &'a [f32],
    /// Entries wanted.
    pub k: usize,
    pub filter: Filter,
    /// Candidates to keep; the index's default if none.
    pub ef: Option<usize>,
}

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    pub id: u64,
    /// The cosine.
    pub similarity: f32,
}

/// The name of a segment's blob in the database; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

/// The graph of a segment.
#[derive(Clone, Debug)]
pub struct Blob {
    pub id: SegmentId,
    pub bytes: Vec<u8>,
}

/// What a database should do to have the blobs of an index. Should that fail, nothing is lost but time when it is loaded.
#[derive(Clone, Debug, Default)]
pub struct Unsaved {
    /// New, or instead of one of the same id.
    pub write: Vec<Blob>,
    pub delete: Vec<SegmentId>,
    /// Points in each blob.
    pub(super) linked: Vec<(SegmentId, usize)>,
}

/// What became of blobs that were loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Blobs that could not be used. They are deleted with what is saved next.
    pub unreadable: Vec<(SegmentId, BlobError)>,
    /// Entries that were in none: found by comparing all of them, until `maintain` has linked them.
    pub unlinked: usize,
}
