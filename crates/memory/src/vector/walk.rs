//! Walking a graph towards a vector.

use std::collections::BinaryHeap;

use super::best::{Best, Rank, Scored};
use super::bits::BitSet;
use super::graph::Graph;
use super::points::{Points, Probe};

/// Accepted points that a step finds before it stops taking detours.
const DETOURS_UNTIL: usize = 32;

/// What a walk needs room for, kept from one to the next.
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

/// What a walk is for.
pub(super) trait Goal {
    /// Points that are not above this are of no use, nor are those behind them.
    fn bound(&self) -> Rank;
    /// A point was met.
    fn meet(&mut self, point: Scored);
}

/// The nearest points, whatever they are.
impl Goal for Best {
    fn bound(&self) -> Rank {
        Best::bound(self)
    }
    fn meet(&mut self, point: Scored) {
        self.offer(point);
    }
}

impl Space<'_> {
    /// The point that links of the levels above `level` lead to, one at a time. `None` in an empty graph.
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

    /// Goes from `start` to ever nearer points of a level, until all that are left are below the goal's bound.
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

    /// A walk on the ground that compares accepted points only: links to others are followed to where these lead. So what
    /// is not accepted costs little, and neither holds a walk up that is near much of it.
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
