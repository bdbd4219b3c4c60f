//! The levels and links of an HNSW graph over numbered points.

use super::points::NONE;

/// Maximum number of links of a point on each level above 0 (the M of HNSW); a new point gets this many on level 0.
pub(super) const LINKS: usize = 32;
/// Maximum number of links of a point on level 0.
pub(super) const GROUND_LINKS: usize = 2 * LINKS;
/// A higher level would hold one point in 32^9.
pub(super) const LEVELS_MAX: usize = 8;

/// Links of points by level. A list ends at its capacity or with `NONE`.
#[derive(Debug, Default)]
pub(super) struct Graph {
    ground: Vec<[u16; GROUND_LINKS]>,
    /// The levels above 0 of each point.
    upper: Vec<Box<[[u16; LINKS]]>>,
    top: Option<u16>,
}

impl Graph {
    /// Returns the number of linked points.
    pub fn len(&self) -> usize {
        self.ground.len()
    }

    /// Returns the entry point of a search, a point on the highest level.
    pub fn top(&self) -> Option<u16> {
        self.top
    }

    pub fn set_top(&mut self, point: Option<u16>) {
        self.top = point;
    }

    /// Returns the highest level of a point.
    pub fn level(&self, point: u16) -> usize {
        self.upper[usize::from(point)].len()
    }

    /// Adds a point without links. It becomes the entry point if no other is on a level as high.
    pub fn add(&mut self, level: usize) -> u16 {
        let point = self.len() as u16;
        self.ground.push([NONE; GROUND_LINKS]);
        self.upper.push(vec![[NONE; LINKS]; level].into());
        if self.top.is_none_or(|top| level > self.level(top)) {
            self.top = Some(point);
        }
        point
    }

    pub fn links_max(level: usize) -> usize {
        if level == 0 { GROUND_LINKS } else { LINKS }
    }

    pub fn links(&self, point: u16, level: usize) -> &[u16] {
        let room = match level {
            0 => &self.ground[usize::from(point)][..],
            _ => &self.upper[usize::from(point)][level - 1][..],
        };
        &room[..room.iter().position(|link| *link == NONE).unwrap_or(room.len())]
    }

    fn room(&mut self, point: u16, level: usize) -> &mut [u16] {
        match level {
            0 => &mut self.ground[usize::from(point)],
            _ => &mut self.upper[usize::from(point)][level - 1],
        }
    }

    /// Replaces the links of a point, a maximum of `links_max`.
    pub fn set_links(&mut self, point: u16, level: usize, links: &[u16]) {
        let (used, free) = self.room(point, level).split_at_mut(links.len());
        used.copy_from_slice(links);
        free.fill(NONE);
    }

    /// Adds a link if there is room for it. Returns whether there was.
    pub fn push_link(&mut self, point: u16, level: usize, to: u16) -> bool {
        let free = self.room(point, level).iter_mut().find(|link| **link == NONE);
        free.map(|link| *link = to).is_some()
    }

    /// Bypasses points that are gone: points linked to one are linked to some of its neighbors instead.
    pub fn bypass(&mut self, gone: impl Fn(u16) -> bool) {
        let all = 0..self.len() as u16;
        for point in all.clone().filter(|point| !gone(*point)) {
            for level in 0..=self.level(point) {
                let (mut links, lost): (Vec<u16>, Vec<u16>) =
                    self.links(point, level).iter().partition(|link| !gone(**link));
                for lost in &lost {
                    let fresh = |next: &&u16| **next != point && !gone(**next) && !links.contains(next);
                    let next: Vec<u16> = self.links(*lost, level).iter().filter(fresh).take(2).copied().collect();
                    links.extend(next);
                }
                if !lost.is_empty() {
                    links.truncate(Self::links_max(level));
                    self.set_links(point, level, &links);
                }
            }
        }
        for point in all.clone().filter(|point| gone(*point)) {
            self.ground[usize::from(point)] = [NONE; GROUND_LINKS];
            self.upper[usize::from(point)] = Box::default();
        }
        if self.top.is_some_and(&gone) {
            self.top = all.filter(|point| !gone(*point)).max_by_key(|point| self.level(*point));
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let upper: usize = self.upper.iter().map(|levels| size_of_val(&**levels)).sum();
        self.ground.capacity() * size_of::<[u16; GROUND_LINKS]>()
            + self.upper.capacity() * size_of::<Box<[[u16; LINKS]]>>()
            + upper
    }
}
