//! The servers that share a memory: who they are, what they serve, and when they last said so.

use serde::{Deserialize, Serialize};

use crate::Memory;
use crate::database::{Reading, Writing};
use crate::error::{MemoryError, Result};
use crate::memory::now_ms;
use crate::schema::take_numbers;

/// A worker that has said nothing for this long is gone.
const ALIVE_MS: i64 = 30_000;
/// How long one that is gone is listed.
const LISTED_MS: i64 = 24 * 60 * 60 * 1000;

/// A server, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Random: another one after a restart.
    pub id: String,
    /// URL at which other machines reach it.
    pub address: String,
    pub version: String,
    /// Unix time.
    pub started_ms: i64,
    pub models: Vec<WorkerModel>,
}

/// A model that a worker has loaded, and its load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerModel {
    pub name: String,
    /// Identifies the file; empty for models that do not generate.
    pub fingerprint: String,
    pub running: usize,
    pub waiting: usize,
    pub kv_used_bytes: usize,
    pub kv_budget_bytes: usize,
    /// Prompt tokens, and those of them that were cached.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
}

/// A worker as the memory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenWorker {
    pub worker: Worker,
    /// When it last described itself, by its own clock.
    pub seen_ms: i64,
    /// Whether that was just now.
    pub is_alive: bool,
}

/// Handle to the servers that share a memory, from [`Memory::workers`].
#[derive(Clone, Copy, Debug)]
pub struct WorkerStore<'a>(pub(crate) &'a Memory);

impl WorkerStore<'_> {
    /// Returns whether several servers can use this memory at once.
    pub fn is_shared(&self) -> bool {
        self.0.database.is_shared()
    }

    /// Adds a worker, or a model to one. Fails if another that is alive serves a different file under the same name: a
    /// session that moved from one to the other would go on with another model.
    pub fn join(&self, worker: &Worker) -> Result<()> {
        self.0.write(|writing| {
            // One at a time, or two that start together would not see each other.
            take_numbers(writing, "workers", 1)?;
            let others = list(writing.as_reading(), now_ms())?;
            let others = others.into_iter().filter(|other| other.is_alive && other.worker.id != worker.id);
            if let Some((model, other)) = others.into_iter().find_map(|other| Some((clash(worker, &other)?, other))) {
                let address = other.worker.address;
                return Err(MemoryError::OtherModel { model, address });
            }
            put(writing, worker)
        })
    }

    /// Notes that a worker is alive, and what it does.
    pub fn put(&self, worker: &Worker) -> Result<()> {
        self.0.write(|writing| put(writing, worker))
    }

    /// Removes a worker that ends.
    pub fn leave(&self, id: &str) -> Result<()> {
        self.0.write(|writing| writing.execute("DELETE FROM workers WHERE worker = $1", &[id.into()])).map(drop)
    }

    /// Returns the workers of the last day, those that were seen last first.
    pub fn list(&self) -> Result<Vec<SeenWorker>> {
        self.0.read(|reading| list(reading, now_ms()))
    }
}

/// Returns the name of a model of which the workers have different files.
fn clash(worker: &Worker, other: &SeenWorker) -> Option<String> {
    let differs = |mine: &&WorkerModel| {
        let is_other = |theirs: &WorkerModel| theirs.name == mine.name && theirs.fingerprint != mine.fingerprint;
        other.worker.models.iter().any(is_other)
    };
    worker.models.iter().find(differs).map(|model| model.name.clone())
}

fn put(writing: &mut dyn Writing, worker: &Worker) -> Result<()> {
    let now = now_ms();
    let body = serde_json::to_string(worker).map_err(|error| MemoryError::damaged(error.to_string()))?;
    writing.execute("DELETE FROM workers WHERE seen_ms < $1", &[(now - LISTED_MS).into()])?;
    let sql = "INSERT INTO workers (worker, seen_ms, body) VALUES ($1, $2, $3) \
               ON CONFLICT (worker) DO UPDATE SET seen_ms = excluded.seen_ms, body = excluded.body";
    writing.execute(sql, &[worker.id.as_str().into(), now.into(), body.into()]).map(drop)
}

fn list(reading: &mut dyn Reading, now: i64) -> Result<Vec<SeenWorker>> {
    let mut found = Vec::new();
    let sql = "SELECT seen_ms, body FROM workers ORDER BY seen_ms DESC, worker";
    reading.rows(sql, &[], &mut |row| {
        let seen_ms = row[0].integer()?;
        let worker = serde_json::from_str(row[1].as_text()?);
        let worker = worker.map_err(|error| MemoryError::damaged(format!("a worker's description: {error}")))?;
        found.push(SeenWorker { worker, seen_ms, is_alive: now - seen_ms < ALIVE_MS });
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryOptions;

    #[test]
    fn a_worker_that_falls_silent_is_gone_and_forgotten_a_day_later() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::open(MemoryOptions::in_folder(folder.path())).unwrap();
        memory.workers().join(&Worker { id: "a".to_owned(), ..Worker::default() }).unwrap();
        let is_alive = |later_ms| memory.read(|reading| list(reading, now_ms() + later_ms)).unwrap()[0].is_alive;
        assert!(is_alive(ALIVE_MS / 2) && !is_alive(ALIVE_MS + 1000));
        let long_ago = now_ms() - LISTED_MS - 1000;
        memory.write(|writing| writing.execute("UPDATE workers SET seen_ms = $1", &[long_ago.into()])).unwrap();
        memory.workers().put(&Worker { id: "b".to_owned(), ..Worker::default() }).unwrap();
        let ids: Vec<String> = memory.workers().list().unwrap().into_iter().map(|seen| seen.worker.id).collect();
        assert_eq!(ids, ["b"]);
    }
}
