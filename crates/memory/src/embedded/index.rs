//! The vector index of the file, and its tables.
//!
//! The index is loaded at the first search. From then on it follows the transactions of this process; maintenance adds what
//! other programs have stored.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rusqlite::{Connection, params};

use crate::database::{Neighbor, StoredVector};
use crate::error::{MemoryError, Result};
use crate::vector::{Blob, FACETS, Facets, Filter, IndexOptions, Query, SegmentId, VectorCode, VectorIndex};

pub(super) const TABLES: [&str; 2] = [
    "CREATE TABLE vectors (id INTEGER PRIMARY KEY, code BYTEA NOT NULL, facets BYTEA NOT NULL)",
    "CREATE TABLE segments (id INTEGER PRIMARY KEY, bytes BYTEA NOT NULL)",
];

/// Vectors linked at a time; others may search in between.
const LINKED_AT_ONCE: usize = 16;

/// A change of a vector by a transaction.
#[derive(Debug)]
pub(super) enum Change {
    Put(StoredVector),
    Remove(i64),
    Clear,
}

/// Which segments of the index are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    /// Those that will hardly change any more.
    Finished,
    Everything,
}

#[derive(Debug)]
pub(super) struct Index {
    dimension: usize,
    loaded: OnceLock<RwLock<VectorIndex>>,
    /// All vectors up to this id are in the index. Later ones get higher ids.
    known: AtomicI64,
}

impl Index {
    pub fn new(dimension: usize) -> Self {
        Self { dimension, loaded: OnceLock::new(), known: AtomicI64::new(0) }
    }

    /// Loads the index if that has not been done. Holds the writer, so that no change is missed.
    pub fn load<'a>(&self, writer: impl FnOnce() -> MutexGuard<'a, Connection>) -> Result<()> {
        if self.loaded.get().is_some() {
            return Ok(());
        }
        let writer = writer();
        if self.loaded.get().is_none() {
            let index = read(&writer, self.dimension)?;
            // Set under the writer's lock only, so it cannot be set already.
            self.loaded.set(RwLock::new(index)).ok();
        }
        Ok(())
    }

    /// Applies the changes of a transaction. An index that is not loaded yet will read them with the rest.
    pub fn apply(&self, changes: Vec<Change>) -> Result<()> {
        if self.loaded.get().is_none() {
            return Ok(());
        }
        for change in changes {
            // Locked for each change, so that a search waits for one insertion only.
            let Some(mut index) = self.write() else { return Ok(()) };
            match change {
                Change::Put(vector) => index.insert(key(vector.id), &vector.code, vector.facets)?,
                Change::Remove(id) => {
                    index.remove(key(id));
                }
                Change::Clear => *index = VectorIndex::new(self.dimension, IndexOptions::default())?,
            }
        }
        Ok(())
    }

    pub fn nearest(&self, vector: &[f32], count: usize, filter: &Filter) -> Result<Vec<Neighbor>> {
        let Some(index) = self.read() else { return Ok(Vec::new()) };
        let hits = index.search(&Query { vector, k: count, filter: filter.clone(), ef: None })?;
        Ok(hits.into_iter().map(|hit| Neighbor { id: hit.id as i64, similarity: hit.similarity }).collect())
    }

    pub fn memory_bytes(&self) -> usize {
        self.read().map_or(0, |index| index.memory_bytes())
    }

    /// Adds what other programs have stored, and links the vectors that are not linked yet.
    pub fn catch_up(&self, connection: &Connection) -> Result<()> {
        let Some(index) = self.read() else { return Ok(()) };
        let mut ids = connection.prepare_cached("SELECT id FROM vectors WHERE id > ?1 ORDER BY id")?;
        let known = self.known.load(Ordering::Relaxed);
        let stored = ids.query_map([known], |row| row.get::<_, i64>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
        let new: Vec<i64> = stored.iter().copied().filter(|id| !index.contains(key(*id))).collect();
        drop(index);
        let mut one = connection.prepare_cached("SELECT id, code, facets FROM vectors WHERE id = ?1")?;
        for id in new {
            let (id, code, facets) = one.query_row([id], entry)??;
            if let Some(mut index) = self.write() {
                index.insert(id, &code, facets)?;
            }
        }
        self.known.store(stored.last().copied().unwrap_or(known), Ordering::Relaxed);
        while self.write().is_some_and(|mut index| index.maintain(LINKED_AT_ONCE)) {}
        Ok(())
    }

    pub fn save(&self, connection: &Connection, saved: Saved) -> Result<()> {
        // A read lock does not block searches.
        let Some(unsaved) = self.read().map(|index| match saved {
            Saved::Finished => index.unsaved(),
            Saved::Everything => index.all_unsaved(),
        }) else {
            return Ok(());
        };
        if unsaved.write.is_empty() && unsaved.delete.is_empty() {
            return Ok(());
        }
        let transaction = connection.unchecked_transaction()?;
        for Blob { id: SegmentId(id), bytes } in &unsaved.write {
            let sql = "INSERT INTO segments (id, bytes) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes";
            transaction.execute(sql, params![*id as i64, bytes])?;
        }
        for SegmentId(id) in &unsaved.delete {
            transaction.execute("DELETE FROM segments WHERE id = ?1", [*id as i64])?;
        }
        transaction.commit()?;
        if let Some(mut index) = self.write() {
            index.mark_saved(&unsaved);
        }
        Ok(())
    }

    fn read(&self) -> Option<RwLockReadGuard<'_, VectorIndex>> {
        self.loaded.get().map(|index| index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> Option<RwLockWriteGuard<'_, VectorIndex>> {
        self.loaded.get().map(|index| index.write().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn put(connection: &Connection, vector: &StoredVector) -> Result<()> {
    let sql = "INSERT INTO vectors (id, code, facets) VALUES (?1, ?2, ?3) \
               ON CONFLICT (id) DO UPDATE SET code = excluded.code, facets = excluded.facets";
    let values = params![vector.id, vector.code.to_bytes(), facet_bytes(vector.facets)];
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

pub(super) fn remove(connection: &Connection, id: i64) -> Result<()> {
    connection.prepare_cached("DELETE FROM vectors WHERE id = ?1")?.execute([id])?;
    Ok(())
}

pub(super) fn remove_all(connection: &Connection) -> Result<()> {
    Ok(connection.execute_batch("DELETE FROM vectors; DELETE FROM segments;")?)
}

fn read(connection: &Connection, dimension: usize) -> Result<VectorIndex> {
    let mut segments = connection.prepare("SELECT id, bytes FROM segments")?;
    let blob = |row: &rusqlite::Row<'_>| {
        let id: i64 = row.get(0)?;
        Ok(Blob { id: SegmentId(id as u64), bytes: row.get(1)? })
    };
    let blobs = segments.query_map([], blob)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut vectors = connection.prepare("SELECT id, code, facets FROM vectors")?;
    let entries = vectors.query_map([], entry)?.map(|row| row?).collect::<Result<Vec<_>>>()?;
    let (index, report) = VectorIndex::load(dimension, IndexOptions::default(), blobs, entries)?;
    for (SegmentId(id), problem) in report.unreadable {
        tracing::warn!("segment {id} of the vector index is rebuilt: {problem}");
    }
    Ok(index)
}

fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<Result<(u64, VectorCode, Facets)>> {
    let (id, code, facets): (i64, Vec<u8>, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let read = || Ok((key(id), VectorCode::from_bytes(&code)?, facets_of(&facets)?));
    Ok(read())
}

fn facet_bytes(facets: Facets) -> Vec<u8> {
    facets.0.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn facets_of(bytes: &[u8]) -> Result<Facets> {
    let mut facets = [0; FACETS];
    if bytes.len() != 4 * FACETS {
        return Err(MemoryError::damaged("the facets of a vector have the wrong length"));
    }
    for (facet, bytes) in facets.iter_mut().zip(bytes.chunks_exact(4)) {
        *facet = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    Ok(Facets(facets))
}

/// Ids of the store are never negative.
fn key(id: i64) -> u64 {
    id as u64
}
