//! Loads graphs from blobs and saves them again.

use std::collections::{BTreeMap, HashMap};

use super::blob;
use super::code::{VectorCode, VectorError};
use super::facets::Facets;
use super::graph::Graph;
use super::index::{Position, VectorIndex};
use super::options::{Blob, IndexOptions, LoadReport, SegmentId, Unsaved};
use super::points::Points;
use super::segment::Segment;

/// New points after which the graph of the growing segment is saved again.
const SAVE_STEP: usize = 2048;

impl VectorIndex {
    /// Creates an index of all entries that a database has, with the saved graphs. Entries that are in none of these, or have
    /// another vector there, can be found at once and are linked by later calls of `maintain`.
    pub fn load(
        dimension: usize,
        options: IndexOptions,
        blobs: impl IntoIterator<Item = Blob>,
        entries: impl IntoIterator<Item = (u64, VectorCode, Facets)>,
    ) -> Result<(Self, LoadReport), VectorError> {
        let mut index = Self::new(dimension, options)?;
        let mut report = LoadReport::default();
        let mut graphs = BTreeMap::new();
        for blob in blobs {
            match blob::from_bytes(&blob.bytes) {
                Ok((graph, fingerprints)) => {
                    graphs.insert(blob.id, (graph, fingerprints));
                }
                Err(error) => {
                    index.dropped.push(blob.id);
                    report.unreadable.push((blob.id, error));
                }
            }
        }
        let points = index.add_graphs(graphs);
        for (id, code, facets) in entries {
            index.check(&code)?;
            index.claim(id, &code, facets, &points);
        }
        index.forget_unclaimed();
        report.unlinked = index.segments.values().map(Segment::unlinked).sum();
        Ok((index, report))
    }

    /// Creates segments without entries. Returns the position of each point by its fingerprint.
    fn add_graphs(&mut self, graphs: BTreeMap<SegmentId, (Graph, Vec<u64>)>) -> HashMap<u64, (SegmentId, u16)> {
        self.segments.clear();
        let mut positions = HashMap::new();
        let newest = graphs.keys().chain(&self.dropped).max().copied();
        for (id, (graph, fingerprints)) in graphs {
            let mut points = Points::new(self.dimension, self.options.points_max().max(graph.len()));
            points.extend_unknown(graph.len());
            self.segments.insert(id, Segment::with(points, graph));
            positions.extend(fingerprints.into_iter().zip(0..).map(|(fingerprint, point)| (fingerprint, (id, point))));
        }
        // The newest segment was growing when it was saved, and continues if it has room.
        self.growing.id = newest.unwrap_or(self.growing.id);
        if self.segments.get(&self.growing.id).is_none_or(Segment::is_full) {
            self.seal();
        }
        positions
    }

    /// Adds an entry to the point that has its vector, or as a new one.
    fn claim(&mut self, id: u64, code: &VectorCode, facets: Facets, points: &HashMap<u64, (SegmentId, u16)>) {
        self.remove(id);
        let place = points.get(&code.fingerprint()).copied();
        let found = place.and_then(|(id, point)| Some((id, self.segments.get_mut(&id)?, point)));
        let Some((segment_id, segment, point)) = found else { return self.put(id, code, facets) };
        if !segment.points.is_known(point) {
            segment.points.set(point, code);
        }
        if segment.takes_twin() && segment.points.is(point, code) {
            let entry = segment.entries.push(id, point, facets);
            self.positions.insert(id, Position { segment: segment_id, entry });
        } else {
            self.put(id, code, facets);
        }
    }

    /// Removes points whose entries are gone: their vectors are unknown, so links bypass them.
    fn forget_unclaimed(&mut self) {
        let ids: Vec<SegmentId> = self.segments.keys().copied().collect();
        for id in ids {
            let segment = self.segment_mut(id);
            if segment.entries.live_count() == 0 {
                self.drop_segment(id);
            } else {
                let Segment { graph, points, .. } = segment;
                graph.bypass(|point| !points.is_known(point));
            }
        }
    }

    /// Returns the blobs to write and to delete: sealed segments, and the growing one if it has changed much.
    pub fn unsaved(&self) -> Unsaved {
        self.unsaved_from(SAVE_STEP)
    }

    /// Returns the same with everything that has changed, for a shutdown.
    pub fn all_unsaved(&self) -> Unsaved {
        self.unsaved_from(1)
    }

    fn unsaved_from(&self, step: usize) -> Unsaved {
        let mut unsaved = Unsaved { delete: self.dropped.clone(), ..Unsaved::default() };
        for (id, segment) in &self.segments {
            let linked = segment.graph.len();
            let new = linked - segment.saved;
            let complete = *id != self.growing.id && segment.unlinked() == 0;
            if new >= step || (complete && new > 0) {
                let fingerprints = (0..linked as u16).map(|point| segment.points.fingerprint(point));
                unsaved.write.push(Blob { id: *id, bytes: blob::to_bytes(&segment.graph, fingerprints) });
                unsaved.linked.push((*id, linked));
            }
        }
        unsaved
    }

    /// Reports that the database has applied the changes.
    pub fn mark_saved(&mut self, saved: &Unsaved) {
        self.dropped.retain(|id| !saved.delete.contains(id));
        for (id, linked) in &saved.linked {
            match self.segments.get_mut(id) {
                Some(segment) => segment.saved = *linked,
                // Its last entry was removed in the meantime.
                None if self.dropped.contains(id) => {}
                None => self.dropped.push(*id),
            }
        }
    }
}
