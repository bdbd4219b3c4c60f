//! Deferred work: linking entries that were loaded, and emptying segments with many removed entries.

use super::index::VectorIndex;
use super::options::SegmentId;

/// A sealed segment with a smaller share of live entries is emptied into the growing one.
const LIVE_SHARE_MIN: f32 = 0.6;

impl VectorIndex {
    /// Does some of the deferred work: links up to `entries_max` entries, each of which takes about as long as an insertion.
    /// Returns whether there is more to do.
    pub fn maintain(&mut self, entries_max: usize) -> bool {
        let linked = self.link_some(entries_max);
        self.move_some(entries_max - linked);
        self.has_unlinked() || self.mostly_removed().is_some()
    }

    fn has_unlinked(&self) -> bool {
        self.segments.values().any(|segment| segment.unlinked() > 0)
    }

    fn link_some(&mut self, most: usize) -> usize {
        let mut scratch = self.scratch();
        let mut linked = 0;
        for segment in self.segments.values_mut() {
            linked += segment.link(most - linked, self.options.ef_construction, &mut scratch);
        }
        self.release(scratch);
        linked
    }

    fn mostly_removed(&self) -> Option<SegmentId> {
        let sealed = self.segments.iter().filter(|(id, _)| **id != self.growing.id);
        sealed.filter(|(_, segment)| segment.live_share() < LIVE_SHARE_MIN).map(|(id, _)| *id).next()
    }

    fn move_some(&mut self, most: usize) {
        let Some(from) = self.mostly_removed() else { return };
        let segment = &self.segments[&from];
        let moved: Vec<_> = segment
            .entries
            .live()
            .take(most)
            .map(|(entry, id)| {
                let code = segment.points.code(segment.entries.point(usize::from(entry)));
                (entry, id, code, segment.entries.facets(entry))
            })
            .collect();
        for (entry, id, code, facets) in moved {
            self.segment_mut(from).entries.remove(entry);
            self.put(id, &code, facets);
        }
        self.link_some(most);
        if self.segments[&from].entries.live_count() == 0 {
            self.drop_segment(from);
        }
    }
}
