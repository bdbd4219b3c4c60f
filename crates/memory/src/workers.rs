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
/// What is beyond these no worker wrote: the table is not only ours. Names are shown on terminals.
const WORKERS_MAX: i64 = 1000;
const BODY_CHARACTERS_MAX: i64 = 1 << 18;
const MODELS_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 512;

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

impl Worker {
    /// Reads a row. `None` if no worker can have written it.
    fn read(id: &str, body: &str) -> Option<Self> {
        let worker: Self = serde_json::from_str(body).ok()?;
        let is_sound = worker.id == id && worker.started_ms >= 0 && worker.models.len() <= MODELS_MAX;
        let is_sound = is_sound && worker.texts().all(is_shown);
        is_sound.then_some(worker)
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let of_models = self.models.iter().flat_map(|model| [&model.name, &model.fingerprint]);
        of_models.chain([&self.id, &self.address, &self.version]).map(String::as_str)
    }
}

/// Returns whether a text can be shown on a terminal.
fn is_shown(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_control)
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
    let sql = "DELETE FROM workers WHERE seen_ms < $1 OR seen_ms > $2";
    writing.execute(sql, &[(now - LISTED_MS).into(), (now + LISTED_MS).into()])?;
    let sql = "INSERT INTO workers (worker, seen_ms, body) VALUES ($1, $2, $3) \
               ON CONFLICT (worker) DO UPDATE SET seen_ms = excluded.seen_ms, body = excluded.body";
    writing.execute(sql, &[worker.id.as_str().into(), now.into(), body.into()]).map(drop)
}

fn list(reading: &mut dyn Reading, now: i64) -> Result<Vec<SeenWorker>> {
    let mut found = Vec::new();
    let mut unread = 0;
    // PostgreSQL's lengths have 32 bits, and so would the parameter beside one.
    let sql = "SELECT worker, seen_ms, body FROM workers \
               WHERE seen_ms <= $1 AND CAST(length(body) AS BIGINT) <= $2 ORDER BY seen_ms DESC, worker LIMIT $3";
    reading.rows(sql, &[(now + LISTED_MS).into(), BODY_CHARACTERS_MAX.into(), WORKERS_MAX.into()], &mut |row| {
        let seen_ms = row[1].integer()?;
        // One that says it was seen later than now is as far from alive as one that fell silent.
        let is_alive = now.abs_diff(seen_ms) < ALIVE_MS.unsigned_abs();
        match Worker::read(row[0].as_text()?, row[2].as_text()?) {
            Some(worker) => found.push(SeenWorker { worker, seen_ms, is_alive }),
            None => unread += 1,
        }
        Ok(())
    })?;
    if unread > 0 {
        tracing::warn!(
            rows = unread,
            "the table of workers has rows that no worker can have written; they are left out"
        );
    }
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

    #[test]
    fn rows_that_no_worker_has_written_are_left_out_and_stop_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::open(MemoryOptions::in_folder(folder.path())).unwrap();
        let model = WorkerModel { name: "m".to_owned(), fingerprint: "f".to_owned(), ..WorkerModel::default() };
        let me = Worker { id: "me".to_owned(), models: vec![model], ..Worker::default() };
        let whole = serde_json::to_value(&me).unwrap();
        let with = |field: &str, value: serde_json::Value| {
            let mut changed = whole.clone();
            changed["models"][0]["fingerprint"] = "another".into();
            *changed.pointer_mut(field).unwrap() = value;
            changed.to_string()
        };
        let forged = [
            String::new(),
            "[]".to_owned(),
            "[".repeat(100_000),
            with("/id", "somebody".into()),
            with("/models", 7.into()),
            with("/models/0/name", "\u{1b}[2J".into()),
            with("/address", "a".repeat(600).into()),
            with("/version", "v".repeat(BODY_CHARACTERS_MAX as usize).into()),
            with("/started_ms", (-1).into()),
            with("/models/0/running", (-1).into()),
            with("/models/0/kv_used_bytes", 1e300.into()),
        ];
        let insert = |id: &str, seen_ms: i64, body: &str| {
            let sql = "INSERT INTO workers (worker, seen_ms, body) VALUES ($1, $2, $3)";
            memory.write(|writing| writing.execute(sql, &[id.into(), seen_ms.into(), body.into()])).unwrap();
        };
        for (number, body) in forged.iter().enumerate() {
            insert(&format!("forged-{number}"), now_ms(), body);
        }
        // Sound but for their time: they would forbid every model for ever.
        for (id, seen_ms) in [("first", i64::MIN), ("last", i64::MAX), ("soon", now_ms() + 10 * ALIVE_MS)] {
            insert(id, seen_ms, &with("/id", id.into()));
        }
        memory.workers().join(&me).unwrap();
        let listed = memory.workers().list().unwrap();
        let alive: Vec<&str> = listed.iter().filter(|seen| seen.is_alive).map(|seen| seen.worker.id.as_str()).collect();
        assert_eq!(alive, ["me"], "{listed:?}");
        assert!(listed.iter().all(|seen| ["me", "soon"].contains(&seen.worker.id.as_str())), "{listed:?}");
        // Numbers may be as large as they like.
        let large =
            with("/models/0/kv_budget_bytes", u64::MAX.into()).replace("another", "f").replace("\"me\"", "\"large\"");
        insert("large", now_ms(), &large);
        assert_eq!(memory.workers().list().unwrap().len(), 3);
    }
}
