//! A graph as bytes, without vectors and entries: points are identified by the fingerprints of their vectors.
//!
//! | bytes | |
//! | --- | --- |
//! | 4 | `RVG1` |
//! | 4 | number of points |
//! | 2 | entry point |
//! | 8 for each point | fingerprint |
//! | 1 for each point | its highest level |
//! | for each point and each of its levels from 0 up | 1 byte: number of links; 2 bytes for each |
//!
//! Little-endian.

use thiserror::Error;

use super::graph::{Graph, LEVELS_MAX};
use super::points::POINTS_MAX;

const MAGIC: [u8; 4] = *b"RVG1";

/// Why bytes are not a valid graph.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BlobError {
    #[error("a graph of another kind or version")]
    Magic,
    #[error("{0} bytes end before the graph does")]
    Short(usize),
    #[error("{0} bytes follow the graph")]
    Long(usize),
    #[error("{0} points, of which a segment has 1 to {POINTS_MAX}")]
    Points(usize),
    #[error("level {0} of a point")]
    Level(usize),
    #[error("{links} links on level {level}")]
    Links { links: usize, level: usize },
    #[error("a link to point {point} on level {level}, where there is none")]
    Link { point: u16, level: usize },
    #[error("the top {0} is not on the highest level")]
    Top(u16),
}

pub(super) fn to_bytes(graph: &Graph, fingerprints: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(MAGIC);
    bytes.extend((graph.len() as u32).to_le_bytes());
    bytes.extend(graph.top().unwrap_or(0).to_le_bytes());
    fingerprints.take(graph.len()).for_each(|fingerprint| bytes.extend(fingerprint.to_le_bytes()));
    let points = || 0..graph.len() as u16;
    bytes.extend(points().map(|point| graph.level(point) as u8));
    for point in points() {
        for level in 0..=graph.level(point) {
            let links = graph.links(point, level);
            bytes.push(links.len() as u8);
            links.iter().for_each(|link| bytes.extend(link.to_le_bytes()));
        }
    }
    bytes
}

/// Returns the graph and the fingerprints of its points.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<(Graph, Vec<u64>), BlobError> {
    let mut reader = Reader { left: bytes, len: bytes.len() };
    if reader.take(4)? != MAGIC {
        return Err(BlobError::Magic);
    }
    let points = u32::from_le_bytes(reader.array()?) as usize;
    if points == 0 || points > POINTS_MAX {
        return Err(BlobError::Points(points));
    }
    let top = u16::from_le_bytes(reader.array()?);
    let fingerprints = reader.take(points * 8)?.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let levels = reader.take(points)?;
    let highest = levels.iter().copied().max().map_or(0, usize::from);
    if highest > LEVELS_MAX {
        return Err(BlobError::Level(highest));
    }
    if levels.get(usize::from(top)).is_none_or(|level| usize::from(*level) != highest) {
        return Err(BlobError::Top(top));
    }
    let mut graph = Graph::default();
    let mut links = Vec::new();
    for point_level in levels {
        let point = graph.add(usize::from(*point_level));
        for level in 0..=usize::from(*point_level) {
            reader.links(level, levels, &mut links)?;
            graph.set_links(point, level, &links);
        }
    }
    graph.set_top(Some(top));
    if !reader.left.is_empty() {
        return Err(BlobError::Long(reader.left.len()));
    }
    Ok((graph, fingerprints))
}

struct Reader<'a> {
    left: &'a [u8],
    len: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], BlobError> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(BlobError::Short(self.len))?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BlobError> {
        let (taken, left) = self.left.split_first_chunk().ok_or(BlobError::Short(self.len))?;
        self.left = left;
        Ok(*taken)
    }

    /// Reads the links of one point on one level.
    fn links(&mut self, level: usize, levels: &[u8], links: &mut Vec<u16>) -> Result<(), BlobError> {
        let count = usize::from(self.array::<1>()?[0]);
        if count > Graph::links_max(level) {
            return Err(BlobError::Links { links: count, level });
        }
        links.clear();
        links.extend(self.take(count * 2)?.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)));
        match links.iter().find(|link| levels.get(usize::from(**link)).is_none_or(|at| usize::from(*at) < level)) {
            Some(point) => Err(BlobError::Link { point: *point, level }),
            None => Ok(()),
        }
    }
}
