//! The memories of corrected texts that answers are drawn with, by whom they belong to.
//!
//! Feedback helps from the next request on: what was corrected, or found right, is read from the store, observed by the
//! model on its engine's thread, and published as an immutable [`Recall`] for each scope. Requests only take a
//! reference. Everything here is made from the store again after a restart, and whenever something is forgotten.

mod items;
mod observe;
mod scope;
mod worker;

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ruvllm_engine::{Recall, RecallItem};
use ruvllm_memory::{MemoryError, Recorder};

use crate::Engine;
use crate::engine::LoadedModel;
use items::ItemId;
pub(crate) use scope::RecallFor;
use scope::{Scope, ScopeKey};
use worker::{Task, Worker};

/// Scopes that are known at a time; nothing is stored for one without corrections but its name.
const SCOPES_MAX: usize = 4096;

/// Memories of all scopes that are in use, and the thread that keeps them up to date. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct RecallMemory {
    shared: Arc<Shared>,
    // `None` only while this is dropped.
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when a task is done.
    done: Condvar,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    scopes: HashMap<ScopeKey, ScopeMemory>,
    /// Counts uses, to tell which scope was used last.
    uses: u64,
    /// Raised when something is forgotten: what was read before must not be published.
    generation: u64,
    is_closing: bool,
    waiting_tasks: usize,
    stats: UseStats,
}

/// What requests made of memories.
#[derive(Clone, Copy, Debug, Default)]
struct UseStats {
    requests: u64,
    tokens: u64,
    shares: f64,
}

/// The memory of one scope.
#[derive(Debug)]
struct ScopeMemory {
    engine: Weak<LoadedModel>,
    recall: Arc<Recall>,
    /// What it holds, in its order.
    items: Vec<(ItemId, Arc<RecallItem>)>,
    used: u64,
}

/// Figures of all memories.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecallStats {
    /// Scopes that have a memory.
    pub scopes: usize,
    pub items: usize,
    pub bytes: usize,
    pub bytes_max: usize,
    /// Requests that were answered with one, and the tokens of their answers.
    pub requests: u64,
    pub tokens: u64,
    /// Mean share of the memory in the mixtures that these were drawn from.
    pub share_mean: f64,
}

impl RecallMemory {
    /// Starts the thread. Memories take up to `bytes_max`, beside those that running requests began with.
    pub(crate) fn start(recorder: Recorder, bytes_max: usize) -> Result<Self, MemoryError> {
        let shared = Arc::new(Shared { state: Mutex::default(), done: Condvar::new(), bytes_max });
        let (tasks, received) = channel();
        let worker = Worker::new(Arc::clone(&shared), recorder, received)?;
        let thread = std::thread::Builder::new().name("recall".into()).spawn(move || worker.run());
        let thread = Some(thread.map_err(MemoryError::Thread)?);
        Ok(Self { shared, tasks: Some(tasks), thread })
    }

    /// Returns the memory for a request: that of its session if something was corrected there, or else of its user, or
    /// else of its tenant. What is not in memory yet is read meanwhile, for the requests to come.
    pub(crate) fn of_request(&self, engine: &Engine, wanted: RecallFor<'_>) -> Option<Arc<Recall>> {
        // Several at once are no adapter that could be had again for a text to come.
        if wanted.adapter.is_some_and(|id| engine.adapters().get(id).is_none()) {
            return None;
        }
        let found = self.find(engine, wanted);
        self.shared.state().stats.requests += u64::from(found.is_some());
        found
    }

    /// Reads what a request would have.
    pub(crate) fn prepare(&self, engine: &Engine, tenant: &str, session: Option<&str>) {
        self.find(engine, RecallFor { adapter: None, tenant, user: None, session });
    }

    fn find(&self, engine: &Engine, wanted: RecallFor<'_>) -> Option<Arc<Recall>> {
        let RecallFor { adapter, tenant, user, session } = wanted;
        let mut found = None;
        let mut unknown = Vec::new();
        let mut state = self.shared.state();
        for scope in Scope::of_request(user, session) {
            let key = ScopeKey { model: engine.model().fingerprint, adapter, tenant: tenant.to_owned(), scope };
            match state.use_scope(&key, engine) {
                Some(recall) if !recall.is_empty() => {
                    found.get_or_insert(recall);
                }
                Some(_) => {}
                None => unknown.push(key),
            }
        }
        drop(state);
        unknown.into_iter().for_each(|key| self.send(Task::Load(key)));
        found
    }

    /// Notes how an answer was drawn.
    pub(crate) fn answered(&self, tokens: usize, share_mean: f64) {
        let mut state = self.shared.state();
        state.stats.tokens += tokens as u64;
        state.stats.shares += share_mean * tokens as f64;
    }

    /// Has the memories follow feedback that was accepted just now.
    pub(crate) fn feedback_given(&self) {
        self.send(Task::Look);
    }

    /// Drops all memories: something that is in one of them was forgotten. They are read again as requests come.
    pub(crate) fn forget(&self) {
        self.shared.state().forget();
    }

    /// Waits until the memories have followed what was said so far; what was said long ago may take longer. Returns
    /// `false` if they have not.
    pub(crate) fn settle(&self, within: Duration) -> bool {
        let is_busy = |state: &mut State| state.waiting_tasks > 0;
        let waited = self.shared.done.wait_timeout_while(self.shared.state(), within, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting_tasks == 0
    }

    pub(crate) fn stats(&self) -> RecallStats {
        let state = self.shared.state();
        let filled = || state.scopes.values().filter(|memory| !memory.recall.is_empty());
        let UseStats { requests, tokens, shares } = state.stats;
        RecallStats {
            scopes: filled().count(),
            items: filled().map(|memory| memory.recall.items()).sum(),
            bytes: filled().map(|memory| memory.recall.bytes()).sum(),
            bytes_max: self.shared.bytes_max,
            requests,
            tokens,
            share_mean: if tokens > 0 { shares / tokens as f64 } else { 0.0 },
        }
    }

    fn send(&self, task: Task) {
        let Some(tasks) = &self.tasks else { return };
        self.shared.state().waiting_tasks += 1;
        if tasks.send(task).is_err() {
            // The thread has panicked; that was logged.
            self.shared.state().waiting_tasks -= 1;
        }
    }
}

impl Drop for RecallMemory {
    fn drop(&mut self) {
        self.shared.state().is_closing = true;
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, that was logged.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No operation under the lock can leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the memory of a scope, or makes it known and returns `None`.
    fn use_scope(&mut self, key: &ScopeKey, engine: &Engine) -> Option<Arc<Recall>> {
        self.uses += 1;
        let used = self.uses;
        if let Some(memory) = self.scopes.get_mut(key) {
            memory.used = used;
            // The model may have been unloaded and loaded again.
            memory.engine = Arc::downgrade(engine.model());
            return Some(Arc::clone(&memory.recall));
        }
        if self.scopes.len() >= SCOPES_MAX {
            self.remove_least_recent(None);
        }
        let (engine, recall) = (Arc::downgrade(engine.model()), Arc::new(Recall::new(None)));
        self.scopes.insert(key.clone(), ScopeMemory { engine, recall, items: Vec::new(), used });
        None
    }

    /// Removes the scope that was not used for longest, other than `kept`. Returns whether there was one.
    fn remove_least_recent(&mut self, kept: Option<&ScopeKey>) -> bool {
        let others = self.scopes.iter().filter(|(key, _)| Some(*key) != kept);
        let Some(key) = others.min_by_key(|(_, memory)| memory.used).map(|(key, _)| key.clone()) else { return false };
        self.scopes.remove(&key).is_some()
    }

    fn bytes(&self) -> usize {
        self.scopes.values().map(|memory| memory.recall.bytes()).sum()
    }

    fn forget(&mut self) {
        self.generation += 1;
        self.scopes.clear();
    }
}
