//! Adds points to a graph.

use super::best::{Best, Scored};
use super::graph::{Graph, LEVELS_MAX, LINKS};
use super::points::Points;
use super::walk::{Scratch, Space};

/// Chosen links that a candidate is compared with at a time. Most candidates are rejected by the first of them.
const COMPARED_AT_ONCE: usize = 8;

/// Returns the highest level of a new point: each level has a 32nd of the points below it. Depends on `seed` only.
pub(super) fn level_of(seed: u64) -> usize {
    // The finalizer of SplitMix64: every bit of the result depends on every bit of the seed.
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits.leading_zeros() / LINKS.ilog2()).min(LEVELS_MAX as u32) as usize
}

/// Links the first point that is not linked yet.
pub(super) fn link_next(points: &Points, graph: &mut Graph, level: usize, ef: usize, scratch: &mut Scratch) {
    let before = graph.top();
    let level_before = before.map_or(0, |top| graph.level(top));
    let probe = points.probe(graph.len() as u16);
    let Some(mut start) = (Space { points, graph }).descend(&probe, level, scratch) else {
        graph.add(level);
        return;
    };
    // From the highest shared level down. The point is added when all its links are known, so that no walk meets
    // it before.
    let mut chosen = Vec::new();
    for level in (0..=level.min(level_before)).rev() {
        let mut nearest = Best::new(ef);
        Space { points, graph }.walk(&probe, level, start, &mut nearest, scratch);
        let nearest = nearest.into_sorted();
        start = nearest[0];
        chosen.push((level, choose(points, &nearest, LINKS, &mut scratch.dots)));
    }
    let point = graph.add(level);
    for (level, links) in chosen {
        graph.set_links(point, level, &links);
        for link in links {
            link_back(points, graph, link, level, point, scratch);
        }
    }
}

/// Adds a link to a point, and drops others if there is no room for it.
fn link_back(points: &Points, graph: &mut Graph, from: u16, level: usize, to: u16, scratch: &mut Scratch) {
    if graph.push_link(from, level, to) {
        return;
    }
    scratch.numbers.clear();
    scratch.numbers.extend(graph.links(from, level).iter().chain([&to]).map(|link| u32::from(*link)));
    let probe = points.probe(from);
    let mut candidates: Vec<Scored> = points.score(&probe, &scratch.numbers, &mut scratch.dots).collect();
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    // Leaves some room, so that this is not needed for every link.
    let links = choose(points, &candidates, Graph::links_max(level) * 3 / 4, &mut scratch.dots);
    graph.set_links(from, level, &links);
}

/// Chooses links in different directions: from the nearest candidate on, those nearer to the point than to all chosen before.
/// A rejected candidate can be reached through the chosen one it is near to.
fn choose(points: &Points, candidates: &[Scored], most: usize, dots: &mut Vec<i32>) -> Vec<u16> {
    let mut chosen: Vec<u32> = Vec::with_capacity(most);
    for candidate in candidates {
        if chosen.len() == most {
            break;
        }
        let own = points.probe(candidate.number() as u16);
        let between = |others: &[u32]| points.score(&own, others, dots).any(|other| other.rank() > candidate.rank());
        if !chosen.chunks(COMPARED_AT_ONCE).any(between) {
            chosen.push(candidate.number());
        }
    }
    chosen.into_iter().map(|point| point as u16).collect()
}
