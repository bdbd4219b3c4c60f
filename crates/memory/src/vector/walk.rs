//! Walks through a graph towards a vector.

use std::collections::BinaryHeap;

use super::best::{Best, Rank, Scored};
use super::bits::BitSet;
use super::graph::Graph;
use super::points::{Points, Probe};

/// Accepted points that a step finds before it stops following rejected ones.
const DETOURS_UNTIL: usize = 32;

/// Buffers of a walk, reused by the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    visited: BitSet,
    candidates: BinaryHeap<Scored>,
    detours: Vec<u16>,
    pub numbers: Vec<u32>,
    pub dots: Vec<i32>,
}

/// Points and the graph over them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space<'a> {
    pub points: &'a Points,
    pub graph: &'a Graph,
}

/// The goal of a walk.
pub(super) trait Goal {
    /// Returns the bound that a point must exceed to be of use, or to be followed.
    fn bound(&self) -> Rank;
    /// Offers a point that was met.
    fn meet(&mut self, point: Scored);
}

/// A goal that accepts every point.
impl Goal for Best {
    fn bound(&self) -> Rank {
        Best::bound(self)
    }
    fn meet(&mut self, point: Scored) {
        self.offer(point);
    }
}

impl Space<'_> {
    /// Descends from the highest level to `level`, one point at a time. Returns `None` in an empty graph.
    pub fn descend(&self, probe: &Probe<'_>, level: usize, scratch: &mut Scratch) -> Option<Scored> {
        let top = self.graph.top()?;
        let mut nearest = self.points.score(probe, &[u32::from(top)], &mut scratch.dots).next()?;
        for level in (level + 1..=self.graph.level(top)).rev() {
            loop {
                scratch.numbers.clear();
                let links = self.graph.links(nearest.number() as u16, level);
                scratch.numbers.extend(links.iter().map(|link| u32::from(*link)));
                let next = self.points.score(probe, &scratch.numbers, &mut scratch.dots).max();
                match next {
                    Some(next) if next.rank() > nearest.rank() => nearest = next,
                    _ => break,
                }
            }
        }
        Some(nearest)
    }

    /// Walks from `start` to ever nearer points of a level, until all that are left are below the goal's bound.
    pub fn walk(&self, probe: &Probe<'_>, level: usize, start: Scored, goal: &mut impl Goal, scratch: &mut Scratch) {
        let Scratch { visited, candidates, numbers, dots, .. } = scratch;
        visited.reset(self.graph.len());
        visited.insert(start.number() as usize);
        candidates.clear();
        candidates.push(start);
        goal.meet(start);
        while let Some(next) = candidates.pop() {
            if next.rank() < goal.bound() {
                break;
            }
            numbers.clear();
            let links = self.graph.links(next.number() as u16, level).iter();
            numbers.extend(links.filter(|link| visited.insert(usize::from(**link))).map(|link| u32::from(*link)));
            for point in self.points.score(probe, numbers, dots) {
                if point.rank() > goal.bound() {
                    candidates.push(point);
                    goal.meet(point);
                }
            }
        }
    }

    /// Walks on level 0 and compares accepted points only: rejected ones are passed through to their neighbors. So they cost
    /// little, and a region of them does not stop the walk.
    pub fn walk_accepted(
        &self,
        probe: &Probe<'_>,
        accepted: &BitSet,
        starts: &[Scored],
        goal: &mut impl Goal,
        scratch: &mut Scratch,
    ) {
        let Scratch { visited, candidates, detours, numbers, dots } = scratch;
        visited.reset(self.graph.len());
        candidates.clear();
        for start in starts.iter().filter(|start| visited.insert(start.number() as usize)) {
            candidates.push(*start);
            if accepted.contains(start.number() as usize) {
                goal.meet(*start);
            }
        }
        while let Some(next) = candidates.pop() {
            if next.rank() < goal.bound() {
                break;
            }
            numbers.clear();
            detours.clear();
            for link in self.graph.links(next.number() as u16, 0) {
                if !accepted.contains(usize::from(*link)) {
                    detours.push(*link);
                } else if visited.insert(usize::from(*link)) {
                    numbers.push(u32::from(*link));
                }
            }
            for detour in detours.iter() {
                if numbers.len() >= DETOURS_UNTIL {
                    break;
                }
                if visited.insert(usize::from(*detour)) {
                    let ahead = self.graph.links(*detour, 0).iter().map(|link| usize::from(*link));
                    let fresh = ahead.filter(|link| accepted.contains(*link) && visited.insert(*link));
                    numbers.extend(fresh.map(|link| link as u32));
                }
            }
            for point in self.points.score(probe, numbers, dots) {
                if point.rank() > goal.bound() {
                    candidates.push(point);
                    goal.meet(point);
                }
            }
        }
    }
}
