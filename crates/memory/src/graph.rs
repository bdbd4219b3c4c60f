//! Weighted, typed edges between entries.

use std::collections::{HashSet, VecDeque};

use crate::database::{Reading, Value, Writing};
use crate::error::{MemoryError, Result};

/// Entries that a traversal visits at most, however far it may go.
const VISITED_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// From a session to a request of it.
    Contains,
    /// From a request to an earlier one that is like it.
    Similar,
    /// From a policy to a session that it was learned from.
    LearnedFrom,
}

impl EdgeKind {
    pub const ALL: [Self; 3] = [Self::Contains, Self::Similar, Self::LearnedFrom];

    pub fn name(self) -> &'static str {
        match self {
            Self::Contains => "contains",
            Self::Similar => "similar",
            Self::LearnedFrom => "learned_from",
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Outgoing,
    Incoming,
}

/// Adds an edge, or gives it another weight.
pub(crate) fn connect(database: &mut dyn Writing, edge: Edge, at_ms: i64) -> Result<()> {
    if !edge.weight.is_finite() {
        return Err(MemoryError::invalid("weight", "an edge's weight must be a finite number"));
    }
    let sql = "INSERT INTO edges (source, kind, target, weight, at_ms) VALUES ($1, $2, $3, $4, $5) \
               ON CONFLICT (source, kind, target) DO UPDATE SET weight = excluded.weight, at_ms = excluded.at_ms";
    let Edge { source, kind, target, weight } = edge;
    database.execute(sql, &[source.into(), kind.name().into(), target.into(), weight.into(), at_ms.into()]).map(drop)
}

/// An entry goes, and so do its edges.
pub(crate) fn disconnect(database: &mut dyn Writing, entry: i64) -> Result<()> {
    database.execute("DELETE FROM edges WHERE source = $1", &[entry.into()])?;
    database.execute("DELETE FROM edges WHERE target = $1", &[entry.into()]).map(drop)
}

/// Edges of an entry, the heaviest first.
pub(crate) fn neighbours(
    database: &mut dyn Reading,
    entry: i64,
    direction: Direction,
    kind: Option<EdgeKind>,
    count_max: usize,
) -> Result<Vec<Edge>> {
    let near = match direction {
        Direction::Outgoing => "source",
        Direction::Incoming => "target",
    };
    let of_kind = if kind.is_some() { " AND kind = $2" } else { "" };
    let sql = format!(
        "SELECT source, kind, target, weight FROM edges WHERE {near} = $1{of_kind} \
         ORDER BY weight DESC, source, target LIMIT {count_max}"
    );
    let mut params = vec![Value::from(entry)];
    params.extend(kind.map(|kind| Value::from(kind.name())));
    let mut edges = Vec::new();
    database.rows(&sql, &params, &mut |row| {
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

/// What can be reached from an entry along edges in their direction, in at most `steps`; the nearest first. An edge
/// lighter than `weight_min` is not followed.
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
        for edge in neighbours(database, at, Direction::Outgoing, None, count_max)? {
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
