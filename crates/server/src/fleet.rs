//! This server among those that share its memory: it says there every few seconds what it serves, and knows the others.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm_memory::{Memory, MemoryError, SeenWorker, Worker, WorkerModel, now_ms};

use crate::models::{ModelInUse, Models};

/// What this server tells the others.
pub struct Fleet {
    models: Arc<Models>,
    /// Only one that several servers can use.
    memory: Option<Arc<Memory>>,
    /// Without its models, which come and go.
    me: Worker,
    /// `None` until the models of the start are loaded.
    told: Mutex<Option<Told>>,
}

/// What the others were told, and whether that failed.
#[derive(Debug, Default)]
struct Told {
    /// Names and fingerprints.
    models: Vec<(String, String)>,
    has_failed: bool,
}

impl Fleet {
    /// `address` is where other machines reach this server.
    pub fn new(models: Arc<Models>, memory: Option<Arc<Memory>>, address: String) -> Self {
        // Without random numbers two workers would be taken for one, which only a list shows.
        let id = format!("{:016x}", getrandom::u64().unwrap_or_default());
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let me = Worker { id, address, version, started_ms: now_ms(), models: Vec::new() };
        let memory = memory.filter(|memory| memory.workers().is_shared());
        Self { models, memory, me, told: Mutex::default() }
    }

    /// Begins to tell. Fails if a worker that shares the memory serves another file under the name of a loaded model; a
    /// database that does not answer is tried again later.
    pub fn join(&self) -> Result<(), MemoryError> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let worker = self.describe();
        let models = match memory.workers().join(&worker) {
            Ok(()) => names(&worker),
            Err(error) if error.is_transient() => Vec::new(),
            Err(error) => return Err(error),
        };
        *self.told() = Some(Told { models, has_failed: false });
        Ok(())
    }

    /// Tells that this server is alive. Called periodically, on a thread that may block.
    pub fn announce(&self) {
        let Some(memory) = &self.memory else { return };
        let mut told = self.told();
        let Some(told) = told.as_mut() else { return };
        let worker = self.describe();
        let models = names(&worker);
        let outcome = if told.models == models {
            memory.workers().put(&worker)
        } else {
            let joined = memory.workers().join(&worker);
            // One that was loaded on demand: the others see it all the same.
            if matches!(joined, Err(MemoryError::OtherModel { .. })) {
                memory.workers().put(&worker).and(joined)
            } else {
                joined
            }
        };
        match outcome {
            Ok(()) => *told = Told { models, has_failed: false },
            Err(error) => {
                if !told.has_failed {
                    tracing::error!("among the workers that share the memory: {error}");
                }
                told.has_failed = true;
            }
        }
    }

    /// Tells that this server ends.
    pub fn leave(&self) {
        let Some(memory) = &self.memory else { return };
        if let Err(error) = memory.workers().leave(&self.me.id) {
            tracing::warn!("the other workers see only in half a minute that this one has ended: {error}");
        }
    }

    /// Returns whether others can be known at all.
    pub(crate) fn is_shared(&self) -> bool {
        self.memory.is_some()
    }

    pub(crate) fn is_me(&self, worker: &Worker) -> bool {
        worker.id == self.me.id
    }

    /// Returns this server as it is now, then the others as they were last seen. Blocks.
    pub(crate) fn workers(&self) -> Result<Vec<SeenWorker>, MemoryError> {
        let others = self.memory.as_ref().map_or(Ok(Vec::new()), |memory| memory.workers().list())?;
        let others = others.into_iter().filter(|other| !self.is_me(&other.worker));
        let me = SeenWorker { worker: self.describe(), seen_ms: now_ms(), is_alive: true };
        Ok(std::iter::once(me).chain(others).collect())
    }

    fn told(&self) -> MutexGuard<'_, Option<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self) -> Worker {
        let describe = |model: &ModelInUse| {
            let engine = model.runner.generator();
            let described = WorkerModel { name: model.name.to_string(), ..WorkerModel::default() };
            let Some(engine) = engine else { return described };
            let status = engine.status();
            WorkerModel {
                fingerprint: engine.fingerprint(),
                running: status.running,
                waiting: status.waiting,
                kv_used_bytes: status.cache.used_bytes,
                kv_budget_bytes: status.cache.budget_bytes,
                prompt_tokens: status.cache.lookups.tokens,
                cached_tokens: status.cache.lookups.tokens_saved,
                ..described
            }
        };
        let mut models: Vec<WorkerModel> = self.models.all_loaded().iter().map(describe).collect();
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Worker { models, ..self.me.clone() }
    }
}

fn names(worker: &Worker) -> Vec<(String, String)> {
    worker.models.iter().map(|model| (model.name.clone(), model.fingerprint.clone())).collect()
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("me", &self.me).finish_non_exhaustive()
    }
}
