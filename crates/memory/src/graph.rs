//! Weighted edges between entries: from a session to its requests, and from a request to similar earlier ones.

use std::collections::{HashSet, VecDeque};

use crate::database::{Reading, Writing};
use crate::error::{MemoryError, Result};

/// Maximum number of entries that a traversal visits.
const VISITED_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// From a session to one of its requests.
    Contains,
    /// From a request to a similar earlier one.
    Similar,
}

impl EdgeKind {
    pub const ALL: [Self; 2] = [Self::Contains, Self::Similar];

    pub fn name(self) -> &'static str {
        match self {
            Self::Contains => "contains",
            Self::Similar => "similar",
        }
    }

    fn from_name(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| MemoryError::damaged(format!("an edge is of the unknown kind {name:?}")))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edge {
    pub source: i64,
    pub kind: EdgeKind,
    pub target: i64,
    pub weight: f64,
}

/// Adds an edge, or changes its weight.
pub(crate) fn connect(database: &mut dyn Writing, edge: Edge, at_ms: i64) -> Result<()> {
    let sql = "INSERT INTO edges (source, kind, target, weight, at_ms) VALUES ($1, $2, $3, $4, $5) \
               ON CONFLICT (source, kind, target) DO UPDATE SET weight = excluded.weight, at_ms = excluded.at_ms";
    let Edge { source, kind, target, weight } = edge;
    database.execute(sql, &[source.into(), kind.name().into(), target.into(), weight.into(), at_ms.into()]).map(drop)
}

/// Removes all edges of an entry.
pub(crate) fn disconnect(database: &mut dyn Writing, entry: i64) -> Result<()> {
    database.execute("DELETE FROM edges WHERE source = $1", &[entry.into()])?;
    database.execute("DELETE FROM edges WHERE target = $1", &[entry.into()]).map(drop)
}

/// Returns the edges that leave an entry, the heaviest first.
fn outgoing(database: &mut dyn Reading, entry: i64, count_max: usize) -> Result<Vec<Edge>> {
    let sql = format!(
        "SELECT source, kind, target, weight FROM edges WHERE source = $1 \
         ORDER BY weight DESC, source, target LIMIT {count_max}"
    );
    let mut edges = Vec::new();
    database.rows(&sql, &[entry.into()], &mut |row| {
        edges.push(Edge {
            source: row[0].integer()?,
            kind: EdgeKind::from_name(row[1].as_text()?)?,
            target: row[2].integer()?,
            weight: row[3].real()?,
        });
        Ok(())
    })?;
    Ok(edges)
}

/// Returns what can be reached from an entry in at most `steps`, with the number of steps, the nearest first. Edges lighter
/// than `weight_min` are not followed.
pub(crate) fn reachable(
    database: &mut dyn Reading,
    entry: i64,
    steps: usize,
    weight_min: f64,
    count_max: usize,
) -> Result<Vec<(usize, Edge)>> {
    let count_max = count_max.min(VISITED_MAX);
    let mut seen = HashSet::from([entry]);
    let mut queue = VecDeque::from([(0, entry)]);
    let mut found = Vec::new();
    while let Some((distance, at)) = queue.pop_front() {
        if distance == steps {
            continue;
        }
        for edge in outgoing(database, at, count_max)? {
            if found.len() == count_max {
                return Ok(found);
            }
            if edge.weight >= weight_min && seen.insert(edge.target) {
                found.push((distance + 1, edge));
                queue.push_back((distance + 1, edge.target));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, MemoryOptions};

    fn edge(source: i64, target: i64, weight: f64) -> Edge {
        Edge { source, kind: EdgeKind::Similar, target, weight }
    }

    #[test]
    fn a_traversal_keeps_to_its_bounds_and_passes_through_cycles_once() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::open(MemoryOptions::in_folder(folder.path())).unwrap();
        let connect = |edge| memory.write(|writing| connect(writing, edge, 1)).unwrap();
        (0..10).for_each(|at| connect(edge(at, at + 1, 0.9)));
        connect(edge(0, 5, 0.1));
        connect(edge(3, 0, 0.9));
        let reached = memory.witness().reachable(0, 3, 0.5, 100).unwrap();
        let reached: Vec<_> = reached.iter().map(|(steps, edge)| (*steps, edge.target)).collect();
        assert_eq!(reached, [(1, 1), (2, 2), (3, 3)]);
        assert_eq!(memory.witness().reachable(0, 100, 0.5, 4).unwrap().len(), 4);
        connect(edge(0, 5, 0.95));
        assert_eq!(memory.witness().reachable(0, 1, 0.5, 1).unwrap(), [(1, edge(0, 5, 0.95))]);
    }
}
