//! One search over all segments.
//!
//! The filter is evaluated to a bit for each entry first, so it is known how many it accepts before anything is compared. A
//! few are compared one by one; among many, a walk through the graph finds the nearest. The results of one segment are a bound
//! for the next.

use super::best::{Best, Rank, Scored};
use super::bits::BitSet;
use super::entries::Accepted;
use super::facets::Filter;
use super::options::Hit;
use super::points::Probe;
use super::segment::Segment;
use super::walk::{Goal, Scratch};

/// Minimum number of nearest points to look for in each segment, however good those of other segments are.
const NEAREST_MIN: usize = 16;
/// Candidates for each entry wanted, where a filter accepts few: a walk then goes farther for each candidate.
const CANDIDATES_PER_HIT_MIN: usize = 3;
/// Rows that a scan multiplies at a time.
const SCANNED_AT_ONCE: usize = 256;
/// Comparing this many rows for each candidate is exhaustive and not much slower than a walk.
const SCANNED_PER_CANDIDATE: usize = 110;
/// From this share of accepted entries on, the others are compared, too: they lead to accepted ones.
const SHARE_FOR_PLAIN_WALK: f32 = 0.4;
/// Evenly sampled accepted points; a walk also starts from the best of them, since all points near the query may be
/// rejected by the filter.
const PICKED: usize = 256;
const STARTS: usize = 8;

/// The parameters of a search.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub probe: Probe<'a>,
    pub k: usize,
    pub ef: usize,
    pub filter: &'a Filter,
}

/// A segment and the entries that the filter accepts.
struct Part<'a> {
    segment: &'a Segment,
    accepted: Accepted,
}

/// The nearest points of a segment that `counts` accepts.
struct Neighbors<'a, F> {
    counts: F,
    here: Best,
    /// Best entries of all segments so far.
    everywhere: &'a mut Best,
}

impl<F: Fn(u16) -> bool> Goal for Neighbors<'_, F> {
    fn bound(&self) -> Rank {
        self.here.bound().min(self.everywhere.bound())
    }

    fn meet(&mut self, point: Scored) {
        if (self.counts)(point.number() as u16) {
            self.here.offer(point);
            self.everywhere.offer(point);
        }
    }
}

impl Search<'_> {
    /// Returns the best entries, best first.
    pub fn run<'s>(&self, segments: impl Iterator<Item = &'s Segment>, scratch: &mut Scratch) -> Vec<Hit> {
        let part = |segment: &'s Segment| Part { segment, accepted: segment.entries.accepted(self.filter) };
        let mut parts: Vec<Part<'_>> = segments.map(part).collect();
        // The segment with the most accepted entries comes first: its results shorten the rest.
        parts.sort_by_key(|part| std::cmp::Reverse(part.accepted.count));
        let mut everywhere = Best::new(self.candidates(&parts));
        let mut hits = Vec::new();
        for part in parts.iter().filter(|part| part.accepted.count > 0) {
            let linked = part.segment.graph.len();
            if part.accepted.count < self.ef * SCANNED_PER_CANDIDATE || linked == 0 {
                self.scan(part, part.accepted.entries.iter_from(0), &mut everywhere, scratch, &mut hits);
                continue;
            }
            for point in self.walk(part, &mut everywhere, scratch) {
                let accepted = part.accepted_of(point.number() as u16).take(self.k);
                hits.extend(accepted.map(|entry| part.hit(entry, point)));
            }
            let unlinked = linked..part.segment.points.len();
            let unlinked = unlinked.flat_map(|point| part.accepted_of(point as u16));
            self.scan(part, unlinked, &mut everywhere, scratch, &mut hits);
        }
        hits.sort_by(|a, b| b.similarity.total_cmp(&a.similarity).then(a.id.cmp(&b.id)));
        hits.truncate(self.k);
        hits
    }

    fn candidates(&self, parts: &[Part<'_>]) -> usize {
        let live: usize = parts.iter().map(|part| part.segment.entries.live_count()).sum();
        let accepted: usize = parts.iter().map(|part| part.accepted.count).sum();
        let share = accepted as f32 / live.max(1) as f32;
        ((self.ef as f32 * share) as usize).max(CANDIDATES_PER_HIT_MIN * self.k).min(self.ef)
    }

    /// Returns the nearest accepted points that are linked, best first.
    fn walk(&self, part: &Part<'_>, everywhere: &mut Best, scratch: &mut Scratch) -> Vec<Scored> {
        let (space, probe) = (part.segment.space(), &self.probe);
        let Some(start) = space.descend(probe, 0, scratch) else { return Vec::new() };
        let here = Best::new(NEAREST_MIN.max(self.k));
        let share = part.accepted.count as f32 / part.segment.entries.len() as f32;
        if share >= SHARE_FOR_PLAIN_WALK {
            let counts = |point| part.accepted_of(point).next().is_some();
            let mut nearest = Neighbors { counts, here, everywhere };
            space.walk(probe, 0, start, &mut nearest, scratch);
            return nearest.here.into_sorted();
        }
        let points = part.segment.accepted_points(&part.accepted);
        let starts = self.starts(part.segment, &points, start, scratch);
        let mut nearest = Neighbors { counts: |_| true, here, everywhere };
        space.walk_accepted(probe, &points, &starts, &mut nearest, scratch);
        nearest.here.into_sorted()
    }

    /// Returns the best of some sampled accepted points, and the usual start of a walk.
    fn starts(&self, segment: &Segment, points: &BitSet, start: Scored, scratch: &mut Scratch) -> Vec<Scored> {
        let linked = segment.graph.len();
        let picked = (0..PICKED).filter_map(|i| points.iter_from(linked * i / PICKED).next());
        scratch.numbers.clear();
        scratch.numbers.extend(picked.map(|point| point as u32));
        let mut best = Best::new(STARTS);
        segment.points.score(&self.probe, &scratch.numbers, &mut scratch.dots).for_each(|point| best.offer(point));
        let mut starts = best.into_sorted();
        starts.push(start);
        starts
    }

    /// Compares some entries one by one.
    fn scan(
        &self,
        part: &Part<'_>,
        mut left: impl Iterator<Item = usize>,
        everywhere: &mut Best,
        scratch: &mut Scratch,
        hits: &mut Vec<Hit>,
    ) {
        let segment = part.segment;
        let mut best = Best::new(self.k);
        let mut entries = Vec::new();
        loop {
            entries.clear();
            entries.extend(left.by_ref().take(SCANNED_AT_ONCE));
            if entries.is_empty() {
                break;
            }
            scratch.numbers.clear();
            scratch.numbers.extend(entries.iter().map(|entry| u32::from(segment.entries.point(*entry))));
            let scored = segment.points.score(&self.probe, &scratch.numbers, &mut scratch.dots);
            for (entry, scored) in entries.iter().zip(scored) {
                if scored.rank() > best.bound() {
                    best.offer(Scored::new(scored.similarity(), *entry as u32));
                }
            }
        }
        for entry in best.into_sorted() {
            everywhere.offer(entry);
            hits.push(part.hit(entry.number() as usize, entry));
        }
    }
}

impl Part<'_> {
    /// Returns the accepted entries of a point.
    fn accepted_of(&self, point: u16) -> impl Iterator<Item = usize> + '_ {
        self.segment.entries.of_point(point).filter(|entry| self.accepted.entries.contains(*entry))
    }

    fn hit(&self, entry: usize, scored: Scored) -> Hit {
        Hit { id: self.segment.entries.id(entry), similarity: scored.similarity() }
    }
}
